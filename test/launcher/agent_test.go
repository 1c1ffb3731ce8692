package launcher_test

import (
	"bytes"
	"encoding/json"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/agent"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestSoftReboot: a guest without an agent is started anew by the power button,
// and its next power-off is one.
func TestSoftReboot(t *testing.T) {
	t.Parallel()
	v := launch(t)
	m := v.machine("polite")
	m.Agent = &qemuargs.Agent{PCI: qemuargs.PCIAddress{Bus: "pcie.0", Slot: 5}}
	v.start(m, 20)
	running := v.await(control.StateRunning)
	v.booted()
	for command, arguments := range map[string]any{control.CommandGuestInfo: nil, control.CommandUsers: nil, control.CommandFileSystems: nil,
		control.CommandFreeze: control.FreezeRequest{TimeoutSeconds: 1}, control.CommandUnfreeze: nil} {
		if err := v.call(command, arguments, nil); err == nil || !strings.Contains(err.Error(), "not connected") {
			t.Errorf("%s without an agent: %v", command, err)
		}
	}
	if err := v.call(control.CommandSoftReboot, nil, nil); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(patience)
	for bytes.Count(v.stdout(), []byte("guest: up")) < 2 {
		if time.Now().After(deadline) {
			t.Fatalf("the guest did not start anew: %q", v.stdout())
		}
		time.Sleep(10 * time.Millisecond)
	}
	var state control.StateReport
	if err := v.call(control.CommandQueryState, nil, &state); err != nil || state.State != control.StateRunning || state.QEMUPID != running.QEMUPID {
		t.Errorf("after the reboot: %v, %+v", err, state)
	}
	v.signals <- syscall.SIGTERM
	v.ends(control.ReasonShutdown)
}

// TestProbeBeforeStart: a guest that has not been started is not to blame; the
// kubelet's liveness probe must not end a launcher that waits for a disk.
func TestProbeBeforeStart(t *testing.T) {
	t.Parallel()
	for _, port := range []bool{true, false} {
		v := launch(t)
		ask := func(request string) (answer agent.Answer, err error) {
			conn, err := net.Dial("unix", v.config.AgentSocket)
			if err != nil {
				return answer, err
			}
			defer conn.Close()
			if _, err := conn.Write([]byte(request + "\n")); err != nil {
				return answer, err
			}
			return answer, json.NewDecoder(conn).Decode(&answer)
		}
		if answer, err := ask(`{"timeoutSeconds": 5}`); err != nil || !strings.Contains(answer.Skipped, "not been started") {
			t.Errorf("before the start: %+v, %v", answer, err)
		}
		if answer, err := ask(`{"timeoutSeconds": 5, "readiness": true}`); err != nil || !strings.Contains(answer.Error, "not been started") {
			t.Errorf("readiness before the start: %+v, %v", answer, err)
		}
		m := v.machine("polite")
		if port {
			m.Agent = &qemuargs.Agent{PCI: qemuargs.PCIAddress{Bus: "pcie.0", Slot: 5}}
		}
		v.start(m, 0)
		v.await(control.StateRunning)
		if answer, err := ask(`{"timeoutSeconds": 5}`); port && (err != nil || !strings.Contains(answer.Error, "not connected")) || !port && err == nil {
			t.Errorf("with a port (%v) and no agent: %+v, %v", port, answer, err)
		}
		v.signals <- syscall.SIGTERM
		v.ends(control.ReasonGracePeriodOver)
	}
}
