package launcher

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// shutdown begins the one way to stop: power button, then at the end of the
// grace period quit, then SIGKILL. Further requests change nothing.
func (l *launcher) shutdown(ctx context.Context) {
	if l.stopping {
		return
	}
	l.stopping = true
	if l.kept != nil {
		l.finish(*l.kept)
		return
	}
	switch l.state.State {
	case control.StateWaiting:
		l.finish(control.Termination{Reason: control.ReasonNeverStarted, Message: "asked to end before virt-handler started the VM"})
	case control.StatePreparing:
		// prepared, or QEMU's exit, ends it.
		l.aborted = true
		l.abort()
		if l.qemu != nil {
			l.qemu.Kill()
		}
	default:
		l.endReboot(ctx)
		l.beginShutdown()
	}
}

func (l *launcher) beginShutdown() {
	grace := time.Duration(l.start.GraceSeconds) * time.Second
	l.pressed = time.Now()
	l.setState(control.StateShuttingDown)
	if grace <= 0 || l.start.Machine.NoACPI {
		l.quit()
		return
	}
	l.grace.Reset(grace)
	l.pressPowerButton()
	l.shutDownByAgent()
}

func (l *launcher) pressPowerButton() {
	l.press.Reset(pressInterval)
	if l.state.QEMUSilent {
		return // it has the last one still to read
	}
	client := l.qmp
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), pressInterval)
		defer cancel()
		if err := client.SystemPowerdown(ctx); err != nil {
			l.Log.Warn("press power button", "error", err)
		}
	}()
}

// shutDownByAgent asks the guest's agent too, if there is one.
func (l *launcher) shutDownByAgent() {
	agent := l.agent
	if agent == nil {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), operateTimeout)
		defer cancel()
		if err := agent.shutDown(ctx); err != nil {
			l.Log.Warn("have the guest agent shut the guest down", "error", err)
		}
	}()
}

// quit ends QEMU without the guest's consent.
func (l *launcher) quit() {
	l.press.Stop()
	l.grace.Stop()
	l.kill.Reset(quitTimeout)
	l.asked = true
	client := l.qmp
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), quitTimeout)
		defer cancel()
		if err := client.Quit(ctx); err != nil {
			l.Log.Warn("quit QEMU", "error", err)
		}
	}()
}

func (l *launcher) killQEMU(ctx context.Context, why string) {
	if l.kept != nil {
		l.stopping = true
		l.finish(*l.kept)
		return
	}
	if l.qemu == nil {
		l.finish(control.Termination{Reason: control.ReasonNeverStarted, Message: why})
		return
	}
	l.Log.Warn("kill QEMU", "reason", why)
	l.qemu.Kill()
	// Its exit ends the loop; there is no other way left.
	l.drainEvents(ctx)
	l.finish(l.termination(<-l.exited))
}

// termination says how the VM ended, from what QEMU said and how it exited.
func (l *launcher) termination(e exit) control.Termination {
	t := control.Termination{ExitCode: e.code, Stderr: l.qemu.stderr.String()}
	if e.signal != 0 {
		t.Signal = e.signal.String()
	}
	switch {
	case l.aborted:
		t.Reason, t.Message = control.ReasonNeverStarted, "asked to end while QEMU was starting"
	case l.startErr != nil:
		t = control.Termination{Reason: control.ReasonStartFailed, Message: l.startErr.Error(), Stderr: t.Stderr}
	case l.state.StartedAt == nil && l.gaveUp != nil:
		t.Reason = control.ReasonStartFailed
		t.Message = fmt.Sprintf("QEMU could not be driven, and was killed before the guest ran: %v", l.gaveUp)
	case l.state.StartedAt == nil && !l.asked:
		t.Reason, t.Message = control.ReasonStartFailed, "QEMU "+e.String()+" before the guest ran"
	case l.notAgain != nil:
		t.Reason = control.ReasonQMPLost
		t.Message = fmt.Sprintf("the guest powered off in order to start anew, and QEMU could not be made to: %v", l.notAgain)
	case l.asked && l.start.Machine.NoACPI:
		t.Reason, t.Message = control.ReasonShutdown, "the guest has no ACPI and so no power button; QEMU was ended"
	case l.asked && l.last.Guest && !l.panicked: // QEMU was still ending: its own quit is not the guest's
		t.Reason, t.Message = l.poweredOff()
	case l.asked:
		t.Reason = control.ReasonGracePeriodOver
		t.Message = fmt.Sprintf("the guest did not power off within %d seconds; QEMU was ended", l.start.GraceSeconds)
	case l.gaveUp != nil && !l.last.Guest: // else it was only slow to give its memory back
		t.Reason = control.ReasonQMPLost
		t.Message = fmt.Sprintf("QEMU could not be driven any more, and was killed: %v", l.gaveUp)
	case (e.signal != 0 || e.code != 0) && (l.gaveUp == nil || !l.last.Guest):
		t.Reason, t.Message = control.ReasonQEMUExited, "QEMU "+e.String()
	case l.panicked || l.last.Reason == "guest-panic":
		t.Reason, t.Message = control.ReasonGuestPanic, "the guest's kernel panicked"
	case l.last.Guest:
		t.Reason, t.Message = l.poweredOff()
	default:
		t.Reason, t.Message = control.ReasonQEMUExited, fmt.Sprintf("QEMU %s (shutdown reason %q)", e, l.last.Reason)
	}
	return t
}

func (l *launcher) poweredOff() (control.Reason, string) {
	if l.stopping {
		return control.ReasonShutdown, "the guest powered off after the ACPI power button"
	}
	return control.ReasonGuestShutdown, "the guest powered off"
}

// exit is how QEMU's process ended.
type exit struct {
	code   int
	signal syscall.Signal
}

func (e exit) String() string {
	if e.signal != 0 {
		return fmt.Sprintf("was killed by signal %d (%s)", int(e.signal), e.signal)
	}
	return fmt.Sprintf("exited with code %d", e.code)
}
