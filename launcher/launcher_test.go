package launcher

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/agent"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/launcher/link"
	"github.com/kubeqemu/kubeqemu/launcher/parts"
	"github.com/kubeqemu/kubeqemu/launcher/process"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestVersionFileIsOnlyOfTheImagesQEMU: the image's version is of the image's QEMU alone.
func TestVersionFileIsOnlyOfTheImagesQEMU(t *testing.T) {
	for _, c := range []struct {
		config Config
		asks   bool
	}{
		{Config{}, false}, {Config{QEMU: "/usr/bin/qemu-system-x86_64"}, false},
		{Config{QEMU: "/opt/qemu"}, true}, {Config{QEMU: "/opt/qemu", QEMUVersion: "/opt/version"}, false},
	} {
		config := c.config
		if config.defaults(); (config.QEMUVersion == "") != c.asks {
			t.Errorf("%+v goes by the version in %q", c.config, config.QEMUVersion)
		}
	}
}

// TestAgentEndsWithQEMU: when the VM ends, the guest's agent is told, and the last report
// of the agent is empty.
func TestAgentEndsWithQEMU(t *testing.T) {
	ours, theirs, err := process.SocketPair("agent")
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	log := slog.New(slog.DiscardHandler)
	var last control.AgentReport
	following := agent.New(ours, &qemuargs.Machine{}, agent.Credentials{Wanted: []control.AgentCredential{{}}},
		func(r control.AgentReport) { last = r }, log)
	defer following.Close()
	if last.Credentials == nil {
		t.Fatalf("the first report is %+v", last)
	}
	l := launcher{Config: Config{Log: log}, vmParts: vmParts{agent: parts.Agent{Agent: following}},
		link: link.New(filepath.Join(t.TempDir(), "none"), "", control.StateReport{}, log)}
	defer l.link.Close()
	l.hear(t.Context(), life.Canceled{}, nil)
	if last.Credentials != nil {
		t.Errorf("the last report is %+v", last)
	}
}

// TestProbeBeforeStart: a guest that has not been started is not to blame. The kubelet's liveness probe must not end
// a launcher that waits for a disk.
func TestProbeBeforeStart(t *testing.T) {
	t.Parallel()
	v := launch(t)
	if answer := v.probed(agent.Request{TimeoutSeconds: 5}); !strings.Contains(answer.Skipped, "not been started") {
		t.Errorf("before the start: %+v", answer)
	}
	readiness := agent.Request{TimeoutSeconds: 5, Readiness: true}
	if answer := v.probed(readiness); !strings.Contains(answer.Error, "not been started") {
		t.Errorf("readiness before the start: %+v", answer)
	}
	v.request.Machine.Agent = &qemuargs.Agent{PCI: qemuargs.PCIAddress{Bus: "pci.2"}}
	v.start()
	if answer := v.probed(agent.Request{TimeoutSeconds: 5}); !strings.Contains(answer.Error, "not connected") {
		t.Errorf("with a port and no agent: %+v", answer)
	}
}
