package life

import (
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// resumed: the guest's CPUs run. QEMU sends RESUME before it answers cont. A STOP or an exit
// right after RESUME is that of a guest that ran.
func (s *step) resumed(now time.Time) {
	if !s.listens() || s.in(Killing) {
		return
	}
	if s.Leaving.trails() {
		s.lose("the guest ran again here after it had left")
		return
	}
	if s.Power == Restarting {
		s.Power, s.LastShutdown, s.Panicked = On, "", false
	}
	if s.Ran.IsZero() {
		s.Ran = now
	}
	switch {
	case s.in(Starting, Received):
		s.Phase = Running
	case s.endsLater():
		s.Leaving = Copying
		s.beginShutdown(s.Pressed)
	case s.Leaving == Halted, s.Leaving == Switching, s.Leaving == Taking:
		s.Leaving = Copying // QEMU has given up; MigrationEnded says why
	case s.Leaving == Left:
		s.Leaving = Staying
	}
	if s.Storage.Trial.trying() {
		s.Storage.Trial = Settling
		s.timer(SettleTimer, SettleTime)
		return
	}
	s.goesOn()
}

// goesOn: the guest runs, and no longer on trial.
func (s *step) goesOn() {
	s.Storage, s.Failed, s.Pause = Storage{}, IOError{}, control.Pause{}
	if s.in(Paused) {
		s.Phase = Running
		s.Pauses++ // QEMU's answer about the pause that is over may still come
	}
}

func (s *step) stopped() {
	switch {
	case !s.driven(), !s.listens():
	case s.Power == Restarting:
	case s.Power == Off:
		// QEMU keeps the guest, which powered off before QEMU heard that the reboot was given
		// up. So QEMU does not end by itself.
		s.quit(Cause{Kind: Quit})
	case s.Leaving != Staying && s.Failed == IOError{}:
		s.halted()
	case s.in(Running), s.Storage.Trial.trying():
		s.pause()
	case s.in(ShuttingDown) && s.Failed != (IOError{}):
		s.pause() // a guest that flushes its disks to shut down may need them again
	}
}

// pause records that the guest's CPUs were stopped, and why: the I/O error that QEMU reported
// before, or else QEMU's run state, which AskReason asks for.
func (s *step) pause() {
	if s.in(Running) {
		s.Phase = Paused
	}
	s.Pauses++
	s.stopSending() // the guest's disks are in doubt
	if f := s.Failed; f != (IOError{}) {
		s.Pause = control.Pause{Status: control.PausedIOError, Disk: f.Disk, Operation: f.Operation, Error: f.Text, NoSpace: f.NoSpace}
		s.schedule()
		return
	}
	s.Storage, s.Pause = Storage{}, control.Pause{Status: control.PausedByUser}
	s.act(AskReason{s.Pauses})
}

// reasonTold ignores an answer that is late: the guest runs again, or was paused again.
func (s *step) reasonTold(e ReasonTold) {
	switch {
	case !s.driven() || e.Running || e.Pause != s.Pauses:
	case s.in(Running) && s.Leaving == Staying: // QEMU did not let the guest of a failed migration run on
		s.Phase, s.Pause = Paused, control.Pause{Status: e.Status}
		s.Pauses++
	case s.Pause.Status == control.PausedByUser:
		s.Pause.Status = e.Status
	}
}

// schedule lets the guest run again later. It is for a guest that only an I/O error stopped.
func (s *step) schedule() {
	wait := min(max(2*s.Storage.Wait, FirstRetry), LastRetry)
	s.Storage = Storage{Scheduled, wait}
	s.timer(RetryTimer, wait)
}

// panicked: QEMU ends by itself after a panic, but in the time in which it keeps a guest that powers off to reboot.
func (s *step) panicked(e Panic) {
	if !s.listens() {
		return
	}
	s.Panicked = true
	if e.Kept && s.driven() {
		s.quit(Cause{Kind: Crashed})
	}
}

// poweredDown: once the guest is off, further SHUTDOWN events are about QEMU's end, and say
// nothing of the guest.
func (s *step) poweredDown(e PoweredDown) {
	if !s.listens() || s.Power.off() {
		return
	}
	s.LastShutdown = e.Reason
	switch {
	case !e.Guest:
	case s.Power == RebootAwaited && s.driven():
		s.Power = Restarting
		s.act(Restart{})
	default:
		s.Power = Off
	}
}
