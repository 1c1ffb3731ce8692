package life

import "github.com/kubeqemu/kubeqemu/launcher/control"

func (s *step) receptionEnded(e ReceptionEnded) {
	switch {
	case !s.in(Receiving):
	case e.Err != nil:
		s.kill(Cause{NotStartable, e.Err.Error()}, "the guest could not be received")
	default:
		s.Phase, s.Whole = Received, true
	}
}

// runAsked lets a received guest run. The guest ran before elsewhere, so that it counts as one that
// has run, paused or not.
func (s *step) runAsked(e RunAsked) {
	switch {
	case s.Order.Incoming && s.in(Running, Paused, ShuttingDown):
		s.answer("")
	case !s.in(Received):
		s.answer("cannot run a received guest: the VM is %s", s.Shown())
	case e.Paused:
		s.Phase, s.Ran, s.Pause = Paused, e.At, control.Pause{Status: control.PausedByUser}
		s.Pauses++
		s.answer("")
	default:
		s.act(Run{})
	}
}

// runFailed: QEMU did not let the guest run. Nothing of the guest is lost: its source can take it back.
func (s *step) runFailed(e RunFailed) {
	if s.in(Received) {
		s.kill(Cause{NotStartable, "let the received guest run: " + e.Err.Error()}, "the received guest does not run")
	}
}
