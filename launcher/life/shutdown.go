package life

import "time"

// Requests to end the VM. None of them is answered.
type (
	// ShutdownAsked is a signal, or virt-handler's command.
	ShutdownAsked struct{ At time.Time }
	// GraceShortened gives the guest less time to shut down. The time counts from the power
	// button, also if the button was pressed already.
	GraceShortened struct {
		Seconds int64
		At      time.Time
	}
	// Canceled: the launcher is being ended.
	Canceled struct{}
)

// hear begins the one way to stop: power button, then at the end of the
// grace period quit, then SIGKILL. Further requests change nothing.
func (e ShutdownAsked) hear(s *step) {
	if s.in(Kept) {
		s.end()
		return
	}
	if s.Wish != GoOn {
		return
	}
	s.Wish = Shutdown
	switch s.Phase {
	case Waiting:
		s.finish(Cause{NotStarted, "asked to end before virt-handler started the VM"})
	case Preparing:
		s.Phase = Aborting
		s.act(Abort)
		s.timer(KillTimer, QuitTime) // a file system may hang
	case Starting, Receiving, Received:
		if s.Memory == Coming {
			s.lose("asked to end before the guest ran here, and the guest has left its source")
			return
		}
		s.act(Abort)
		if s.mayHaveRun() {
			s.kill(Cause{}, "asked to end, and the received guest may run already")
			return
		}
		s.kill(Cause{NotStarted, "asked to end while QEMU was starting"}, "asked to end before the guest runs")
	case Running, Paused:
		switch { // the guest may run elsewhere, and so not here
		case s.Follows() && s.Order.Grace > 0: // and it needs its memory, also in order to shut down
			s.Pressed = e.At
			s.timer(GraceTimer, seconds(s.Order.Grace))
			return
		case s.Leaving.decided():
			s.quit(Cause{Kind: Moved})
			return
		}
		s.stopSending()
		if s.Ran.IsZero() { // CPUs that never ran react to no power button
			s.kill(Cause{NotStarted, "asked to end before the guest ran"}, "asked to end before the guest runs")
			return
		}
		s.beginShutdown(e.At)
	}
}

func (s *step) beginShutdown(now time.Time) {
	s.forgetReboot()
	s.Phase, s.Pressed = ShuttingDown, now
	if s.Order.Grace <= 0 || s.Order.NoACPI {
		s.quit(Cause{Kind: Quit})
		return
	}
	s.timer(GraceTimer, seconds(s.Order.Grace))
	s.timer(ButtonTimer, PressInterval)
	s.press()
	s.act(AskAgent)
}

func (s *step) press() {
	if s.Silence != Silent { // a silent QEMU has not read the last press yet
		s.act(Press)
	}
}

func (e GraceShortened) hear(s *step) {
	if s.in(Waiting) || s.HasEnded() || e.Seconds < 0 || e.Seconds >= s.Order.Grace {
		return
	}
	s.Order.Grace = e.Seconds
	if !s.in(ShuttingDown) && !s.endsLater() {
		return
	}
	if left := s.Pressed.Add(seconds(e.Seconds)).Sub(e.At); left > 0 {
		s.timer(GraceTimer, left)
	} else {
		s.graceOver()
	}
}

func (s *step) graceOver() {
	if s.endsLater() {
		s.quit(Cause{Kind: Moved})
		return
	}
	s.quit(Cause{Kind: Quit})
}

func (Canceled) hear(s *step) {
	const why = "the launcher is being ended"
	if s.Wish == GoOn {
		s.Wish = Cancel
	}
	switch {
	case s.in(Kept):
		s.end()
	case s.in(Waiting, Preparing, Aborting):
		s.finish(Cause{NotStarted, why})
	case s.driven(), s.in(Quitting):
		s.kill(s.Cause, why)
	}
}

// quit ends QEMU without the guest's consent.
func (s *step) quit(c Cause) {
	s.Phase, s.Cause = Quitting, c
	s.leaveGuest()
	s.act(TellQuit)
	s.timer(KillTimer, QuitTime)
}

func (s *step) kill(c Cause, why string) {
	s.Phase, s.Cause = Killing, c
	s.leaveGuest()
	s.act(Kill{why})
}

// overdue ends a preparation or a QEMU that should have ended by itself.
func (s *step) overdue() {
	const why = "QEMU did not exit by itself"
	switch {
	case s.in(Aborting):
		s.finish(abortedEarly)
	case s.in(Quitting):
		s.kill(s.Cause, why)
	default:
		s.kill(Cause{Undrivable, s.Lost}, why)
	}
}

func seconds(n int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Second)
	return time.Duration(min(n, most)) * time.Second
}
