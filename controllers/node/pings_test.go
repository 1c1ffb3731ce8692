package node

import (
	"testing"
	"time"

	"k8s.io/client-go/tools/events"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// pinged returns the session of a launcher whose guest runs, and that writes down what it is asked.
func pinged(t *testing.T) (*growing, *sessions.Session) {
	g := newGrowing(t)
	g.vmi.Annotations = map[string]string{v1.PauseGuestAgentProbesAnnotation: "true"}
	s := g.session()
	s.SetState(control.StateReport{State: control.StateRunning, StartedAt: &g.now, Machine: &qemuargs.Machine{Agent: &qemuargs.Agent{}}})
	return g, s
}

// TestLauncherIsToldToHoldPings: the launcher is told what the annotation says, when that differs from what the
// launcher does.
func TestLauncherIsToldToHoldPings(t *testing.T) {
	g, s := pinged(t)
	steps := func(name string, agent *control.AgentReport, asked string) {
		t.Helper()
		s.SetAgent(agent)
		again, got := g.holdPings(t.Context(), g.vmi, s), ""
		if len(g.asked) > 0 {
			got = <-g.asked
		}
		if got != asked || again != 0 || len(g.asked) > 0 {
			t.Errorf("%s: asked %q, again after %v, want %q", name, got, again, asked)
		}
	}
	steps("nothing known of the agent", nil, `hold-pings {"hold":true}`)
	steps("held", &control.AgentReport{PingsHeld: true}, "")
	g.vmi.Annotations = nil
	steps("the annotation is gone", &control.AgentReport{PingsHeld: true}, `hold-pings {"hold":false}`)
	steps("not held", &control.AgentReport{}, "")
	g.vmi.Annotations = map[string]string{v1.PauseGuestAgentProbesAnnotation: "true"}
	s.SetState(control.StateReport{State: control.StateRunning, StartedAt: &g.now, Machine: &qemuargs.Machine{}})
	steps("no port of an agent", nil, "")
	s.SetState(control.StateReport{State: control.StateWaiting})
	steps("not started", nil, "")

	s.SetState(control.StateReport{State: control.StateRunning, StartedAt: &g.now, Machine: &qemuargs.Machine{Agent: &qemuargs.Agent{}}})
	s.Client.Close()
	if again := g.holdPings(t.Context(), g.vmi, s); again != holdPatience {
		t.Errorf("a launcher that is gone: again after %v", again)
	}
}

// TestFailedPingIsToldOnce: a failed ping is told once, and only for a VMI with such a probe.
func TestFailedPingIsToldOnce(t *testing.T) {
	recorder := events.NewFakeRecorder(10)
	g, s := pinged(t)
	g.Events = recorder
	vmi := &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{Phase: v1.Running}}
	vmi.Name = "vm"
	told := func(name string, at time.Time, want string) {
		t.Helper()
		s.SetAgent(&control.AgentReport{PingFailed: at})
		g.announcePing(vmi, s)
		got := ""
		if len(recorder.Events) > 0 {
			got = <-recorder.Events
		}
		if got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	const failed = "Warning GuestAgentPingFailed GuestAgentPing probe failed for VMI vm"
	told("no such probe", g.now, "")
	vmi.Spec.ReadinessProbe = &v1.Probe{Handler: v1.Handler{GuestAgentPing: &v1.GuestAgentPing{}}}
	told("none failed", time.Time{}, "")
	told("long ago", g.now.Add(-time.Hour), "")
	told("failed", g.now, failed)
	told("the same", g.now, "")
	told("another at once", g.now.Add(time.Second), "")
	g.clock.Step(time.Minute)
	told("a minute later", g.clock.Now(), failed)
	g.clock.Step(time.Hour)
	told("a launcher's nonsense", g.clock.Now().Add(24*time.Hour), "")
	vmi.Status.Phase = v1.Scheduled
	told("not running yet", g.clock.Now(), "")
}
