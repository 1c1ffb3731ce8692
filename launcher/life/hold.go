package life

import (
	"fmt"
	"time"
)

// Holding is how far a guest is that stands for a job.
type Holding int

// The ways of a guest that a job holds.
const (
	Free      Holding = iota // no job holds the guest
	Stopping                 // QEMU was told to stop the guest
	Held                     // the guest stands
	LettingGo                // QEMU was told to let the guest run on
)

// Hold is a guest that stands for a job: a moment that is the job's, and no pause. The guest counts as what it was
// before, and virt-handler hears nothing of the hold.
type Hold struct {
	Job uint64
	How Holding
	// Over: the job needs the guest to stand no more, and QEMU has not stopped it yet.
	Over bool
}

// What a job asks for, and how that goes.
type (
	// HoldAsked: a job wants the guest to stand, for Bound at most. AnswerHold answers. Busy: QEMU was asked for
	// something for the guest, and has not answered.
	HoldAsked struct {
		Job   uint64
		Bound time.Duration
		Busy  bool
	}
	// HoldOver: the job needs the guest to stand no more.
	HoldOver struct{ Job uint64 }
	// HoldFailed: QEMU has not said that it stops the guest. It may do so later.
	HoldFailed struct {
		Job uint64
		Err error
	}
	// LetGoAnswered: QEMU has let the guest run on, or Err says why not.
	LetGoAnswered struct {
		Job uint64
		Err error
	}
)

// hear begins to hold the guest. A guest that a user has paused stands already.
func (e HoldAsked) hear(s *step) {
	why := s.unsettled()
	if why == "" && e.Busy {
		why = busyWithGuest
	}
	if why != "" {
		s.act(AnswerHold{e.Job, why})
		return
	}
	s.Hold = Hold{Job: e.Job, How: Stopping}
	s.timer(HoldTimer, e.Bound)
	if s.in(Paused) {
		s.stand()
		return
	}
	s.act(HoldGuest{e.Job})
}

// stand notes that the guest stands for its job.
func (s *step) stand() {
	s.Hold.How = Held
	if s.Hold.Over {
		s.letGo()
		return
	}
	s.act(AnswerHold{Job: s.Hold.Job})
}

func (e HoldOver) hear(s *step) {
	if e.Job == s.Hold.Job {
		s.endHold()
	}
}

// endHold lets the guest run on, as soon as it stands.
func (s *step) endHold() {
	switch s.Hold.How {
	case Stopping:
		s.Hold.Over = true
	case Held:
		s.letGo()
	}
}

// letGo lets the guest be what it is without its job. A guest whose disk has failed meanwhile is paused for that.
func (s *step) letGo() {
	switch {
	case s.in(Paused):
		s.Hold = Hold{}
	case s.Failed != IOError{}:
		s.Hold = Hold{}
		s.pause()
	default:
		s.runOn()
	}
}

func (s *step) runOn() {
	s.Hold.How, s.Hold.Over = LettingGo, false
	s.act(LetGo{s.Hold.Job})
}

// overstayed ends a job that has held the guest for longer than it may. A guest that QEMU has not stopped by then is
// told to run on, whatever QEMU has done: QEMU says nothing if the guest stood before it was told to stop it.
func (s *step) overstayed() {
	if !s.Hold.Over {
		s.act(EndJob{s.Hold.Job})
	}
	if s.Hold.How == Stopping {
		if !s.Hold.Over {
			s.act(AnswerHold{s.Hold.Job, "QEMU has not stopped the guest in time"})
		}
		s.runOn()
		return
	}
	s.endHold()
}

// hear lets the guest run on, whatever QEMU has done: it carries out one command after the other.
func (e HoldFailed) hear(s *step) {
	if e.Job != s.Hold.Job || s.Hold.How != Stopping {
		return
	}
	if !s.Hold.Over {
		s.act(AnswerHold{e.Job, e.Err.Error()})
	}
	s.runOn()
}

// hear ends the hold, if QEMU's RESUME has not. After an error QEMU is asked whether the guest runs.
func (e LetGoAnswered) hear(s *step) {
	if e.Job != s.Hold.Job || s.Hold.How != LettingGo {
		return
	}
	s.Hold = Hold{}
	if e.Err != nil {
		s.Pauses++
		s.act(AskReason{s.Pauses})
	}
}

// dropHold forgets the hold of a guest that ends, or that QEMU cannot be told anything about any more.
func (s *step) dropHold() {
	if s.Hold.How == Stopping && !s.Hold.Over {
		s.act(AnswerHold{s.Hold.Job, "the VM is ending, or QEMU cannot be driven any more"})
	}
	s.Hold = Hold{}
}

// standing returns why a guest that stands for a job is left alone, or an empty text if no job holds the guest.
func (s *step) standing() string {
	if s.Hold.How == Free {
		return ""
	}
	return fmt.Sprintf("job %d holds the guest for a moment", s.Hold.Job)
}
