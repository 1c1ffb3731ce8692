package life

import (
	"fmt"
	"slices"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Step returns the state after an event, and the actions to carry out, in order. An event that
// makes no sense in a state changes nothing.
func Step(before State, heard Event) (State, []Action) {
	s := step{State: before}
	if s.in(Ended) {
		return before, nil
	}
	s.hear(heard)
	if s.outlives() && !before.outlives() { // QEMU may have to write, also where the guest has no grace period
		s.timer(GraceTimer, max(seconds(s.Order.Grace), QuitTime))
	}
	return s.State, s.actions(before, heard)
}

// step is a state on its way to the next.
type step struct {
	State
	do []Action
}

// actions puts first what follows from the difference between two states: it stops timers that
// nobody waits for any more, and reports to virt-handler.
func (s *step) actions(before State, heard Event) []Action {
	var out []Action
	for t := range Timers {
		if before.runs(t) && !s.runs(t) && heard != (Expired{t}) {
			out = append(out, StopTimer{t})
		}
	}
	if s.reported() != before.reported() {
		out = append(out, Report{})
	}
	return append(out, s.do...)
}

func (s *step) act(a ...Action) { s.do = append(s.do, a...) }

func (s *step) answer(refusal string, args ...any) {
	s.act(Answer{fmt.Sprintf(refusal, args...)})
}

func (s *step) timer(t Timer, after time.Duration) { s.act(StartTimer{t, after}) }

// in says whether the VM is in one of these phases.
func (s *step) in(phases ...Phase) bool { return slices.Contains(phases, s.Phase) }

func (s *step) hear(heard Event) {
	switch e := heard.(type) {
	case StartAsked:
		s.startAsked(e)
	case Rejected:
		s.rejected(e)
	case MigrateAsked:
		s.migrateAsked(e)
	case SwitchoverAsked:
		s.switchoverAsked()
	case PostCopyBegun:
		s.postCopyBegun()
	case MemoryTrails:
		s.memoryTrails()
	case MigrationEnded:
		s.migrationEnded(e)
	case TakeBackAsked:
		s.takeBackAsked()
	case ReleaseAsked:
		s.releaseAsked()
	case AllButMemory:
		s.allButMemory()
	case ReceptionEnded:
		s.receptionEnded(e)
	case RunAsked:
		s.runAsked(e)
	case RunAnswered:
		s.runAnswered()
	case RunFailed:
		s.runFailed(e)
	case OperationAsked:
		s.operationAsked(e)
	case ShutdownAsked:
		s.shutdownAsked(e)
	case GraceShortened:
		s.graceShortened(e)
	case Canceled:
		s.canceled()
	case Prepared:
		s.prepared(e)
	case ExecFailed:
		if s.in(Starting) && s.Lost == "" {
			s.finish(Cause{NotStartable, e.Err.Error()})
		}
	case Handshaken:
		s.handshaken(e)
	case HandshakeFailed:
		if s.driven() || s.in(Quitting) {
			s.kill(Cause{NotStartable, e.Err.Error()}, "it could not be made to run the guest")
		}
	case OperationFailed:
		s.operationFailed(e)
	case RestartFailed:
		s.restartFailed(e)
	case ContinueFailed:
		if s.Storage.Trial == Continued {
			s.schedule()
		}
	case ReasonTold:
		s.reasonTold(e)
	case ProbeAnswered:
		if !s.HasEnded() {
			s.Silence = Unasked
		}
	case Resumed:
		s.resumed(e.At)
	case Stopped:
		s.stopped()
	case PoweredDown:
		s.poweredDown(e)
	case Panic:
		s.panicked(e)
	case IOFailed:
		if s.listens() {
			s.Failed = e.Error
		}
	case MonitorLost:
		s.monitorLost(e)
	case QEMUExited:
		if s.hasQEMU() {
			s.Exit = e.Exit
			s.finish(s.Cause)
		}
	case Probed:
		if s.Serves() && s.Lost == "" && s.Silence == Unasked {
			s.Silence = Asked
			s.act(Probe{})
			s.timer(PatienceTimer, PatienceTime)
		}
	case TPMEnded:
		s.tpmEnded(e)
	case Expired:
		s.expired(e.Timer)
	}
}

// hasQEMU says whether QEMU was started and has not ended.
func (s *step) hasQEMU() bool { return s.driven() || s.in(Quitting, Killing) }

// listens says whether QEMU can tell anything.
func (s *step) listens() bool { return s.hasQEMU() && s.Lost == "" }

func (s *step) startAsked(e StartAsked) {
	if !s.in(Waiting) {
		s.answer("cannot start: the VM is %s", s.Shown())
		return
	}
	s.Phase, s.Order = Preparing, e.Order
	s.act(Prepare{})
	s.answer("")
}

// rejected ends a VM that virt-handler cannot start. The launcher says so in its termination
// message, so that only virt-controller writes the terminal phase.
func (s *step) rejected(e Rejected) {
	if !s.in(Waiting) {
		s.answer("cannot reject: the VM is %s", s.Shown())
		return
	}
	s.answer("")
	s.finish(Cause{NotStartable, e.Text})
}

func (s *step) prepared(e Prepared) {
	switch {
	case s.in(Aborting):
		s.finish(abortedEarly)
	case !s.in(Preparing):
	case e.Err != nil:
		s.finish(Cause{NotStartable, e.Err.Error()})
	default:
		s.Phase = Starting
		s.act(Exec{})
	}
}

func (s *step) handshaken(e Handshaken) {
	switch {
	case !s.in(Starting): // QEMU's RESUME was heard first
	case s.Order.Incoming:
		s.Phase = Receiving
	case s.Order.Paused:
		s.Phase, s.Pause = Paused, control.Pause{Status: control.PausedByUser}
		s.Pauses++
	default:
		s.Phase, s.Ran = Running, e.At
	}
}

// forgetReboot makes the guest's next power-off a power-off again, and no reboot.
func (s *step) forgetReboot() {
	if s.Power == RebootAwaited {
		s.Power = On
		s.act(ForgetReboot{})
	}
}

// leaveGuest gives up what is under way for the guest.
func (s *step) leaveGuest() {
	s.Storage = Storage{}
	if s.Power == RebootAwaited {
		s.Power = On
	}
	if s.in(Killing) && s.Silence == Asked {
		s.Silence = Unasked
	}
}

func (s *step) monitorLost(e MonitorLost) {
	if !s.hasQEMU() || s.Lost != "" {
		return
	}
	s.Lost = e.Err.Error()
	s.Storage.Trial = NoTrial
	if s.Silence == Asked {
		s.Silence = Unasked
	}
	if !s.in(Killing) {
		s.timer(KillTimer, QuitTime)
	}
}

// finish ends the VM. After a failure the launcher may have to stay, so that somebody can look
// around.
func (s *step) finish(c Cause) {
	started := !s.in(Waiting)
	s.Cause, s.Phase = c, Killing
	s.leaveGuest()
	if started && s.Order.Keep && s.Wish == GoOn && !s.Termination().Succeeded() {
		s.Phase = Kept
		s.act(Keep{})
		return
	}
	s.end()
}

func (s *step) end() {
	s.Phase = Ended
	s.act(End{})
}

func (s *step) expired(t Timer) {
	if !s.runs(t) {
		return
	}
	switch t {
	case ButtonTimer:
		s.timer(ButtonTimer, PressInterval)
		s.press()
	case GraceTimer:
		s.graceOver()
	case KillTimer:
		s.overdue()
	case RetryTimer:
		if s.Leaving != Staying { // only QEMU's migration may let the guest run
			s.schedule()
			return
		}
		// Also for a guest that is shutting down: with its disk back it can.
		s.Storage.Trial, s.Failed = Continued, IOError{}
		s.act(Continue{})
	case SettleTimer:
		s.goesOn()
	case PatienceTimer:
		s.Silence = Silent
	case RebootTimer:
		s.forgetReboot()
	case TPMTimer:
		s.tpmLost()
	}
}
