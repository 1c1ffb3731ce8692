package parts

import (
	"encoding/json"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/agent"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/process"
)

// probed asks as a readiness probe does.
func probed(t *testing.T, socket string) (answer agent.Answer, err error) {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return answer, err
	}
	defer conn.Close()
	if err := json.NewEncoder(conn).Encode(agent.Request{TimeoutSeconds: 5, Readiness: true}); err != nil {
		t.Fatal(err)
	}
	return answer, json.NewDecoder(conn).Decode(&answer)
}

// TestProbesAskTheAgent: a probe has an answer before the guest is started, asks the agent's port from then on, and
// is not answered for a machine without the port.
func TestProbesAskTheAgent(t *testing.T) {
	for _, port := range []bool{true, false} {
		a := &Agent{Socket: filepath.Join(t.TempDir(), "agent"), Tell: func(control.AgentReport) {}, Log: quiet}
		if err := a.Listen(); err != nil {
			t.Fatal(err)
		}
		if answer, err := probed(t, a.Socket); err != nil || !strings.Contains(answer.Error, "not been started") {
			t.Errorf("before the start: %+v, %v", answer, err)
		}
		qemu := &process.QEMU{}
		if port {
			qemu.Agent, _ = socketPair(t)
		}
		if err := a.Attach(&control.StartRequest{}, qemu); err != nil || (a.Agent != nil) != port {
			t.Fatalf("with a port (%t): %v, %v", port, a.Agent, err)
		}
		a.SetRunning(true)
		if answer, err := probed(t, a.Socket); port &&
			(err != nil || answer.Error != agent.ErrNotConnected.Error()) || !port && err == nil {
			t.Errorf("with a port (%t): %+v, %v", port, answer, err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if _, err := probed(t, a.Socket); err == nil {
			t.Error("probes are answered after the end")
		}
	}
}

// TestProbesHaveNoSocket: a socket that could not be made is made once it is needed, or the start fails.
func TestProbesHaveNoSocket(t *testing.T) {
	a := &Agent{Socket: "/none/agent", Tell: func(control.AgentReport) {}, Log: quiet}
	if err := a.Listen(); err == nil {
		t.Fatal("there is a socket")
	}
	ours, _ := socketPair(t)
	defer ours.Close()
	qemu := &process.QEMU{Agent: ours}
	if err := a.Attach(&control.StartRequest{}, qemu); err == nil || !strings.Contains(err.Error(), "listen for probes") {
		t.Errorf("without a socket: %v", err)
	}
	a.Socket = filepath.Join(t.TempDir(), "agent")
	if err := a.Attach(&control.StartRequest{}, qemu); err != nil {
		t.Error(err)
	}
	if answer, err := probed(t, a.Socket); err != nil || !strings.Contains(answer.Skipped, "CPUs are stopped") {
		t.Errorf("%+v, %v", answer, err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}
