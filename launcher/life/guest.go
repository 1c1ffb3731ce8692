package life

import (
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// What QEMU tells of the guest by itself. Any of these may come in any state.
type (
	// Resumed is RESUME: the guest's CPUs run.
	Resumed struct{ At time.Time }
	// Stopped is STOP: the guest's CPUs are stopped.
	Stopped struct{}
	// PoweredDown is SHUTDOWN.
	PoweredDown struct {
		Guest  bool // the guest asked for it
		Reason string
	}
	// Panic is GUEST_PANICKED. Kept: QEMU stops the guest and lives on, because it was told to keep a guest that
	// powers off.
	Panic struct{ Kept bool }
	// IOFailed is a BLOCK_IO_ERROR for which QEMU stops the guest. QEMU sends it before it
	// stops the guest (blk_error_action in block/block-backend.c).
	IOFailed struct{ Error IOError }
)

// What QEMU answers about a guest whose CPUs it has stopped.
type (
	// ReasonTold answers AskReason.
	ReasonTold struct {
		Pause   int
		Status  string
		Running bool
	}
	// ContinueFailed: QEMU did not let a guest run that an I/O error stopped.
	ContinueFailed struct{}
)

// IOError is an I/O error as QEMU describes it.
type IOError struct {
	Disk, Operation, Text string
	NoSpace               bool
}

// hear notes that the guest has run. QEMU sends RESUME before it answers cont. A STOP or an exit
// right after RESUME is that of a guest that ran.
func (e Resumed) hear(s *step) {
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
	if s.Hold.How == Held || s.Hold.How == LettingGo { // the job, or LetGo, has had the guest run on
		s.Hold = Hold{}
	}
	if s.Ran.IsZero() {
		s.Ran = e.At
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

// goesOn notes that the guest runs, and no longer on trial.
func (s *step) goesOn() {
	s.Storage, s.Failed, s.Pause = Storage{}, IOError{}, control.Pause{}
	if s.in(Paused) {
		s.Phase = Running
		s.Pauses++ // QEMU's answer about the pause that is over may still come
	}
}

func (Stopped) hear(s *step) {
	switch {
	case !s.driven(), !s.listens():
	case s.Power == Restarting:
	case s.Power == Off:
		// QEMU keeps the guest, which powered off before QEMU heard that the reboot was given
		// up. So QEMU does not end by itself.
		s.quit(Cause{Kind: Quit})
	case s.Hold.How == Stopping:
		s.stand()
	case s.Hold.How != Free: // it stands already
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
		s.Pause = control.Pause{Status: control.PausedIOError, Disk: f.Disk, Operation: f.Operation, Error: f.Text,
			NoSpace: f.NoSpace}
		s.schedule()
		return
	}
	s.Storage, s.Pause = Storage{}, control.Pause{Status: control.PausedByUser}
	s.act(AskReason{s.Pauses})
}

// hear ignores an answer that is late: the guest runs again, or was paused again.
func (e ReasonTold) hear(s *step) {
	switch {
	case !s.driven() || e.Running || e.Pause != s.Pauses:
	case s.in(Running) && s.Hold.How != Free: // the guest stands for a job, and runs on after that
	case s.in(Running) && s.Leaving == Staying: // QEMU did not let the guest of a failed migration run on
		s.Phase, s.Pause = Paused, control.Pause{Status: e.Status}
		s.Pauses++
	case s.Pause.Status == control.PausedByUser:
		s.Pause.Status = e.Status
	}
}

func (e IOFailed) hear(s *step) {
	if s.listens() {
		s.Failed = e.Error
	}
}

func (ContinueFailed) hear(s *step) {
	if s.Storage.Trial == Continued {
		s.schedule()
	}
}

// retry lets the guest run whose wait is over.
func (s *step) retry() {
	if s.Leaving != Staying { // only QEMU's migration may let the guest run
		s.schedule()
		return
	}
	// Also for a guest that is shutting down: with its disk back it can.
	s.Storage.Trial, s.Failed = Continued, IOError{}
	s.act(Continue)
}

// schedule lets the guest run again later. It is for a guest that only an I/O error stopped.
func (s *step) schedule() {
	wait := min(max(2*s.Storage.Wait, FirstRetry), LastRetry)
	s.Storage = Storage{Scheduled, wait}
	s.timer(RetryTimer, wait)
}

// hear ends a QEMU that keeps a guest that powers off to reboot. Any other QEMU ends by itself after a panic.
func (e Panic) hear(s *step) {
	if !s.listens() {
		return
	}
	s.Panicked = true
	if e.Kept && s.driven() {
		s.quit(Cause{Kind: Crashed})
	}
}

// hear notes that the guest is off. Once it is, further SHUTDOWN events are about QEMU's end, and say
// nothing of the guest.
func (e PoweredDown) hear(s *step) {
	if !s.listens() || s.Power.off() {
		return
	}
	s.LastShutdown = e.Reason
	switch {
	case !e.Guest:
	case s.Power == RebootAwaited && s.driven():
		s.Power = Restarting
		s.act(Restart)
	default:
		s.Power = Off
	}
}
