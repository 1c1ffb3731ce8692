package launcher

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// handedOut attaches to the console over the control connection.
func handedOut(v *vm) *attached {
	v.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := v.conn.CallForStream(ctx, control.CommandConsole)
	v.must(err)
	return attachedTo(v, conn)
}

// TestOperate: a paused guest stands still, and goes on; its console is handed
// out, and taken over.
func TestOperate(t *testing.T) {
	t.Parallel()
	v := launch(t)
	if _, err := v.conn.CallForStream(context.Background(), control.CommandConsole); err == nil {
		t.Error("a console before there is a guest")
	}
	if err := v.call(control.CommandPause, nil, nil); err == nil || !strings.Contains(err.Error(), "the VM is waiting") {
		t.Errorf("paused before it was started: %v", err)
	}
	v.boot()
	first := attach(v)
	first.say("first")
	first.expect("first")
	second := handedOut(v)
	receive(t, first.ended, "the end of the console that is taken over")
	second.say("second")
	second.expect("second")

	v.must(v.call(control.CommandPause, nil, nil))
	if p := v.expectState(control.StatePaused).Pause; p == nil || p.Status != control.PausedByUser {
		t.Errorf("paused for %+v", p)
	}
	if err := v.call(control.CommandPause, nil, nil); err == nil || !strings.Contains(err.Error(), "paused already") {
		t.Errorf("paused twice: %v", err)
	}
	third := handedOut(v)
	third.say("while paused")
	time.Sleep(time.Second)
	if got := third.text(); got != "" {
		t.Errorf("a paused guest wrote %q", got)
	}
	v.must(v.call(control.CommandUnpause, nil, nil))
	v.expectState(control.StateRunning)
	third.expect("while paused")
	if err := v.call(control.CommandUnpause, nil, nil); err == nil || !strings.Contains(err.Error(), "not paused") {
		t.Errorf("unpaused twice: %v", err)
	}
	v.must(v.call(control.CommandReset, nil, nil))
	third.expect(banner)
	// A stop that was asked for with a long grace period is made a short one.
	v.must(v.call(control.CommandPause, nil, nil))
	v.expectState(control.StatePaused)
	v.must(v.call(control.CommandShutdown, nil, nil))
	v.expectState(control.StateShuttingDown)
	v.must(v.call(control.CommandGrace, control.GraceRequest{Seconds: 0}, nil))
	v.expectState(control.StateExited)
	v.expectEnd(control.ReasonGracePeriodOver, "within 0 seconds")
}
