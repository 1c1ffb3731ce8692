package launcher

import (
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/agent"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// probed asks as a probe does.
func (v *vm) probed(r agent.Request) (answer agent.Answer) {
	v.Helper()
	conn, err := net.Dial("unix", v.AgentSocket)
	v.must(err)
	defer conn.Close()
	v.must(conn.SetDeadline(time.Now().Add(patience)), json.NewEncoder(conn).Encode(r))
	data, err := io.ReadAll(conn)
	v.must(err, json.Unmarshal(data, &answer))
	return answer
}

// TestHoldPings: virt-handler has pings of the guest's agent answered, and holds them no more.
func TestHoldPings(t *testing.T) {
	t.Parallel()
	v := launch(t)
	if err := v.call(control.CommandHoldPings, control.HoldPingsRequest{Hold: true}, nil); err == nil ||
		!strings.Contains(err.Error(), "the VM is waiting") {
		t.Errorf("before the guest is started: %v", err)
	}
	v.request.Machine.Agent = &qemuargs.Agent{PCI: qemuargs.PCIAddress{Bus: "pci.2"}}
	v.boot()
	ping := agent.Request{TimeoutSeconds: 5}
	if answer := v.probed(ping); !strings.Contains(answer.Error, "not connected") {
		t.Errorf("without an agent: %+v", answer)
	}
	v.must(v.call(control.CommandHoldPings, control.HoldPingsRequest{Hold: true}, nil))
	if answer := v.probed(ping); answer.Error != "" || !strings.Contains(answer.Skipped, "annotation") {
		t.Errorf("held: %+v", answer)
	}
	if err := v.call(control.CommandHoldPings, map[string]bool{"hold": true, "later": true}, nil); err == nil {
		t.Error("a command with a field that the launcher does not know was carried out")
	}
	v.must(v.call(control.CommandHoldPings, control.HoldPingsRequest{}, nil))
	if answer := v.probed(ping); answer.Error == "" {
		t.Errorf("no longer held: %+v", answer)
	}
}
