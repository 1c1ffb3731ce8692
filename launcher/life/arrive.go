package life

import (
	"cmp"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Memory is whether the memory of a guest is where the guest is.
type Memory int

// Where the memory is.
const (
	Here   Memory = iota
	Coming        // a received guest's memory follows it
)

// Letting is how far QEMU is with the word to let a received guest run. From that word on the guest may have run,
// until QEMU refuses: QEMU's event RESUME may be late, or be lost with QEMU.
type Letting int

// How far QEMU is.
const (
	NotLet   Letting = iota
	BeingLet         // QEMU was told, and has not answered
	Let
)

// A guest that is received, as QEMU tells of it.
type (
	// AllButMemory: QEMU has received all of a guest but its memory.
	AllButMemory struct{}
	// ReceptionEnded: QEMU has received all of a guest, or Err says why not.
	ReceptionEnded struct{ Err error }
)

// The word to let a received guest run.
type (
	// RunAsked: virt-handler wants the guest to run that was received, unless a user had paused it. It is answered.
	RunAsked struct {
		Paused bool
		At     time.Time
	}
	// RunAnswered: QEMU lets a received guest run.
	RunAnswered struct{}
	// RunFailed: QEMU did not let a received guest run. Unheard: virt-handler does not wait for the answer any
	// more.
	RunFailed struct {
		Err     error
		Unheard bool
	}
)

// arrives reports whether a guest that was received may run here from now on. One that arrives paused may run at any
// time.
func (s State) arrives(before State) bool {
	return before.Phase == Received && (s.Phase == Running || s.Phase == Paused)
}

// mayHaveRun reports whether the guest has run here, as far as anybody can know.
func (s State) mayHaveRun() bool { return !s.Ran.IsZero() || s.Letting != NotLet }

// hear notes that QEMU has the guest's CPUs and devices. QEMU can let the guest run, and no other QEMU can any more.
func (AllButMemory) hear(s *step) {
	if s.in(Receiving) {
		s.Phase, s.Came, s.Memory = Received, true, Coming
	}
}

func (e ReceptionEnded) hear(s *step) {
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

// hear lets a received guest run. The guest ran before elsewhere, so that it counts as one that has run, paused or
// not. QEMU is told once, until it has answered: of two words, a refusal of the second says nothing of the first.
func (e RunAsked) hear(s *step) {
	switch {
	case s.Order.Incoming && s.in(Running, Paused, ShuttingDown), s.in(Received) && s.Letting == Let:
		s.answer("")
	case !s.in(Received):
		s.answer("cannot run a received guest: the VM is %s", s.Shown())
	case s.TPM.Early && s.Memory == Here && s.Letting == NotLet: // else the source may have no guest to take back
		why := cmp.Or(s.TPM.Lost, s.TPM.Ending)
		s.act(RefuseRun{why})
		s.kill(Cause{NoTPM, "let the received guest run: " + why}, "the TPM failed before the guest ran")
	case s.Letting == BeingLet:
		s.answer("cannot run the received guest yet: QEMU was told, and has not answered")
	case e.Paused:
		s.Phase, s.Ran, s.Pause = Paused, e.At, control.Pause{Status: control.PausedByUser}
		s.Pauses++
		s.answer("")
	default:
		s.Letting = BeingLet
		s.act(Run)
	}
}

func (RunAnswered) hear(s *step) {
	if s.Letting == BeingLet {
		s.Letting = Let
	}
}

// hear notes that QEMU has refused. Nothing of the guest is lost: its source can take it back once all of the memory
// has come. Until then the guest may be asked to run again. So it may if nobody hears of the refusal: the source then
// takes nothing back.
func (e RunFailed) hear(s *step) {
	if s.Letting != BeingLet {
		return
	}
	s.Letting = NotLet
	switch {
	case !s.in(Received), s.Memory == Coming, e.Unheard:
	default:
		s.kill(Cause{NotStartable, "let the received guest run: " + e.Err.Error()}, "the received guest does not run")
	}
}
