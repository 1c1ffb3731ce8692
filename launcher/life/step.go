package life

import (
	"fmt"
	"slices"
	"time"
)

// Event is something that the loop has heard. Each event stands in the file of its subject, and its method hear
// decides what follows. Some events are requests that are answered: by the action Answer, or by the outcome of the
// action that carries the request out.
type Event interface{ hear(*step) }

// Step returns the state after an event, and the actions to carry out, in order. An event that
// makes no sense in a state changes nothing.
func Step(before State, heard Event) (State, []Action) {
	s := step{State: before}
	if s.in(Ended) {
		return before, nil
	}
	heard.hear(&s)
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
// nobody waits for any more, notes that a guest has arrived, and reports to virt-handler.
func (s *step) actions(before State, heard Event) []Action {
	var out []Action
	for t := range Timers {
		if before.runs(t) && !s.runs(t) && heard != (Expired{t}) {
			out = append(out, StopTimer{t})
		}
	}
	if s.arrives(before) {
		out = append(out, Arrive)
	}
	if s.reported() != before.reported() {
		out = append(out, Report)
	}
	return append(out, s.do...)
}

func (s *step) act(a ...Action) { s.do = append(s.do, a...) }

func (s *step) answer(refusal string, args ...any) {
	s.act(Answer{fmt.Sprintf(refusal, args...)})
}

func (s *step) timer(t Timer, after time.Duration) { s.act(StartTimer{t, after}) }

// in reports whether the VM is in one of these phases.
func (s *step) in(phases ...Phase) bool { return slices.Contains(phases, s.Phase) }

// finish ends the VM. After a failure the launcher may have to stay, so that somebody can look
// around.
func (s *step) finish(c Cause) {
	started := !s.in(Waiting)
	s.Cause, s.Phase = c, Killing
	s.leaveGuest()
	if started && s.Order.Keep && s.Wish == GoOn && !s.Termination().Succeeded() {
		s.Phase = Kept
		s.act(Keep)
		return
	}
	s.end()
}

func (s *step) end() {
	s.Phase = Ended
	s.act(End)
}

// leaveGuest gives up what is under way for the guest.
func (s *step) leaveGuest() {
	s.Storage = Storage{}
	s.dropHold()
	if s.Power == RebootAwaited {
		s.Power = On
	}
	if s.in(Killing) && s.Silence == Asked {
		s.Silence = Unasked
	}
}
