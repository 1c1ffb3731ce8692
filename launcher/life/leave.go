package life

import "cmp"

// Leaving is how far a guest is on its way to another QEMU (live migration).
type Leaving int

// The ways of a guest that leaves. Until Switching the guest can only run here. From then on it may
// run elsewhere, and only virt-handler knows where it is to run.
const (
	Staying   Leaving = iota
	Copying           // QEMU copies disks and memory, and the guest runs
	Halted            // QEMU has stopped the guest in order to send the rest
	Switching         // QEMU sends the rest
	Taking            // as Switching, and the guest is to run here again
	Trailing          // as Switching, and the memory follows the guest: it cannot run here again
	Torn              // as Trailing, and the memory does not follow any more
	Left              // all was sent
)

// decided reports whether the guest may run elsewhere.
func (l Leaving) decided() bool { return l >= Switching }

// trails reports whether the guest cannot run here again: QEMU has given its CPUs away, and not all of its memory.
func (l Leaving) trails() bool { return l == Trailing || l == Torn }

// Requests of virt-handler for a guest that leaves, all of them answered.
type (
	// MigrateAsked: the guest is to leave. Busy: QEMU was asked for something for the guest, and
	// has not answered.
	MigrateAsked struct{ Busy bool }
	// TakeBackAsked: the guest is to run here again.
	TakeBackAsked struct{}
	// ReleaseAsked: the guest runs elsewhere.
	ReleaseAsked struct{}
)

// How the migration goes that Send has begun.
type (
	// SwitchoverAsked: QEMU has stopped the guest in order to send the rest. The action
	// AnswerSwitchover answers.
	SwitchoverAsked struct{}
	// PostCopyBegun: QEMU was told to send the guest before its memory.
	PostCopyBegun struct{}
	// MemoryTrails: QEMU has sent the guest without its memory, and sends that now.
	MemoryTrails struct{}
	// MigrationEnded: QEMU has sent all of the guest, or Err says why not. With an error, the
	// guest runs here if it ran before. NoReturn: it cannot.
	MigrationEnded struct {
		Err      error
		NoReturn bool
	}
)

func (e MigrateAsked) hear(s *step) {
	if why := s.mustStay(e.Busy); why != "" {
		s.answer("cannot migrate: %s", why)
		return
	}
	s.Leaving, s.PostCopy = Copying, false
	s.act(Send)
}

// busyWithGuest is why a guest is left alone that QEMU is just being asked to change.
const busyWithGuest = "QEMU is still changing something for the guest"

// mustStay returns why a guest cannot leave now, or an empty text if it can.
func (s *step) mustStay(busy bool) string {
	why := s.unsettled()
	switch {
	case why != "":
		return why
	case s.TPM != TPM{}:
		return "the guest's TPM has failed, so that there is no state of it that could move: " +
			cmp.Or(s.TPM.Lost, s.TPM.Ending)
	case busy:
		return busyWithGuest
	}
	return ""
}

// unsettled returns what is under way for a guest or has failed, or an empty text for a guest that runs, or that a
// user has paused, and no more.
func (s *step) unsettled() string {
	switch {
	case !s.in(Running, Paused) || s.Ran.IsZero():
		return "the VM is " + string(s.Shown())
	case s.Leaving != Staying:
		return "the guest is being migrated already"
	case s.Lost != "":
		return "QEMU cannot be driven any more"
	case s.Memory == Coming:
		return "the guest's memory is still coming"
	case s.Power != On, s.Panicked:
		return "the guest reboots or has powered off"
	case s.Failed != IOError{}, s.Storage.Trial != NoTrial:
		return "a disk of the guest fails"
	}
	return s.standing()
}

// halted notes the STOP that QEMU sends before it asks for the switchover.
func (s *step) halted() {
	if s.Leaving == Copying {
		s.Leaving = Halted
	}
}

// stopSending cancels a migration that the guest must not go through with.
func (s *step) stopSending() {
	if s.Leaving == Copying || s.Leaving == Halted {
		s.act(StopSending)
	}
}

// hear permits the switchover to a guest with which all is well. It may be paused.
func (SwitchoverAsked) hear(s *step) {
	why := ""
	switch {
	case s.Leaving != Copying && s.Leaving != Halted:
		why = "the guest is not being migrated"
	case s.Wish != GoOn:
		why = "the VM is asked to end"
	case s.Power != On, s.Panicked:
		why = "the guest has powered off"
	case s.Failed != IOError{}, s.Storage.Trial != NoTrial:
		why = "a disk of the guest fails"
	default:
		s.Leaving = Switching
	}
	s.act(AnswerSwitchover{why})
}

// hear notes that from the switchover on the memory follows the guest.
func (PostCopyBegun) hear(s *step) {
	if s.Leaving == Copying || s.Leaving == Halted {
		s.PostCopy = true
	}
}

func (MemoryTrails) hear(s *step) {
	if s.Leaving == Switching {
		s.Leaving = Trailing
	}
}

func (e MigrationEnded) hear(s *step) {
	if s.endsLater() && (e.Err == nil || e.NoReturn || s.Leaving.trails()) {
		s.quit(Cause{Kind: Moved})
	}
	switch {
	case s.Leaving == Staying:
	case e.NoReturn && s.Leaving == Taking && s.driven():
		s.Leaving = Torn
		s.lose("the guest cannot go on at the target, and has left all but its memory")
	case e.NoReturn, e.Err != nil && s.Leaving.trails():
		s.Leaving = Torn
	case e.Err != nil:
		if s.Leaving != Copying && s.in(Running) { // no RESUME was heard yet
			s.act(AskReason{s.Pauses})
		}
		shutDown := s.endsLater()
		if s.Leaving = Staying; shutDown {
			s.beginShutdown(s.Pressed)
		}
	case s.Leaving == Taking: // all was sent before QEMU heard that it is for nothing
		s.Leaving = Left
		s.takeBack()
	default:
		s.Leaving = Left
	}
}

// takeBack lets a guest run again that was sent. A guest that a user had paused stays paused.
func (s *step) takeBack() {
	if s.in(Paused) {
		s.Leaving = Staying
		return
	}
	s.act(TakeBack{Sent: true})
}

// lose kills a guest whose state is split between two QEMUs and can no longer be put together.
func (s *step) lose(why string) {
	s.kill(Cause{Scattered, why}, "the guest can run neither here nor elsewhere")
}

// hear takes back a guest that is not to run elsewhere. Where the migration has failed already, there is nothing to
// do. A guest that cannot run here again ends.
func (TakeBackAsked) hear(s *step) {
	switch {
	case s.Leaving.trails() && s.driven():
		s.answer("")
		s.lose("the guest cannot go on at the target, and has left all but its memory")
	case s.Leaving == Switching:
		s.Leaving = Taking
		s.act(TakeBack{})
		s.answer("")
	case s.Leaving == Left && s.driven():
		s.takeBack()
		s.answer("")
	case s.Leaving == Copying, s.Leaving == Halted:
		s.answer("cannot take the guest back: it is still being migrated")
	case s.Leaving == Taking, s.in(Running, Paused, ShuttingDown):
		s.answer("")
	default:
		s.answer("cannot take the guest back: the VM is %s", s.Shown())
	}
}

func (ReleaseAsked) hear(s *step) {
	switch {
	case s.Follows():
		s.answer("cannot release the guest: its memory is still being sent")
	case s.driven() && (s.Leaving == Switching || s.Leaving == Torn || s.Leaving == Left):
		s.answer("")
		s.quit(Cause{Kind: Moved})
	case s.Cause.Kind == Moved:
		s.answer("")
	default:
		s.answer("cannot release the guest: the VM is %s", s.Shown())
	}
}
