package life

import (
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Requests of virt-handler for a VM that was not started. Both are answered.
type (
	// StartAsked: virt-handler has sent what QEMU needs.
	StartAsked struct{ Order Order }
	// Rejected: virt-handler found no way to start the VM.
	Rejected struct{ Text string }
)

// Outcomes of Prepare and Exec. If Exec failed because QEMU ended, QEMUExited says so alone.
type (
	// Prepared: disks and seed are made, or Err says why not.
	Prepared struct{ Err error }
	// ExecFailed: QEMU could not be started.
	ExecFailed struct{ Err error }
	// Handshaken: QEMU answers, and lets the guest run unless it is to start paused.
	Handshaken struct{ At time.Time }
	// HandshakeFailed: QEMU did not answer or did not let the guest run, and lives.
	HandshakeFailed struct{ Err error }
)

func (e StartAsked) hear(s *step) {
	if !s.in(Waiting) {
		s.answer("cannot start: the VM is %s", s.Shown())
		return
	}
	s.Phase, s.Order = Preparing, e.Order
	s.act(Prepare)
	s.answer("")
}

// hear ends a VM that virt-handler cannot start. The launcher says so in its termination
// message, so that only virt-controller writes the terminal phase.
func (e Rejected) hear(s *step) {
	if !s.in(Waiting) {
		s.answer("cannot reject: the VM is %s", s.Shown())
		return
	}
	s.answer("")
	s.finish(Cause{NotStartable, e.Text})
}

func (e Prepared) hear(s *step) {
	switch {
	case s.in(Aborting):
		s.finish(abortedEarly)
	case !s.in(Preparing):
	case e.Err != nil:
		s.finish(Cause{NotStartable, e.Err.Error()})
	default:
		s.Phase = Starting
		s.act(Exec)
	}
}

func (e ExecFailed) hear(s *step) {
	if s.in(Starting) && s.Lost == "" {
		s.finish(Cause{NotStartable, e.Err.Error()})
	}
}

func (e Handshaken) hear(s *step) {
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

func (e HandshakeFailed) hear(s *step) {
	if s.driven() || s.in(Quitting) {
		s.kill(Cause{NotStartable, e.Err.Error()}, "it could not be made to run the guest")
	}
}
