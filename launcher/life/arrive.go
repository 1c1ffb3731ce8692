package life

import "github.com/kubeqemu/kubeqemu/launcher/control"

// Memory is whether the memory of a guest is where the guest is.
type Memory int

// Where the memory is.
const (
	Here   Memory = iota
	Coming        // a received guest's memory follows it
)

// allButMemory: QEMU has the guest's CPUs and devices. It can let the guest run, and no other QEMU can any more.
func (s *step) allButMemory() {
	if s.in(Receiving) {
		s.Phase, s.Came, s.Memory = Received, true, Coming
	}
}

func (s *step) receptionEnded(e ReceptionEnded) {
	switch {
	case s.Memory == Coming && e.Err == nil:
		s.Memory = Here
	case s.Memory == Coming && s.driven():
		s.lose(e.Err.Error())
	case !s.in(Receiving):
	case e.Err != nil:
		s.kill(Cause{NotStartable, e.Err.Error()}, "the guest could not be received")
	default:
		s.Phase, s.Came = Received, true
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

// runFailed: QEMU did not let the guest run. Nothing of the guest is lost: its source can take it back once all of the memory has
// come. Until then the guest may be asked to run again.
func (s *step) runFailed(e RunFailed) {
	switch {
	case !s.in(Received), s.Memory == Coming:
	default:
		s.kill(Cause{NotStartable, "let the received guest run: " + e.Err.Error()}, "the received guest does not run")
	}
}
