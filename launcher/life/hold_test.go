package life

import (
	"slices"
	"testing"
)

// TestGuestThatFailedToMoveIsNotLeftPaused: QEMU may be asked why the guest of a failed migration stands, and see it
// stand for a job.
func TestGuestThatFailedToMoveIsNotLeftPaused(t *testing.T) {
	s := reach(find(t, states(), "halted"))
	for _, e := range []Event{MigrationEnded{Err: errWhy}, hold, Stopped{}} {
		s, _ = Step(s, e)
	}
	s, _ = Step(s, ReasonTold{Pause: s.Pauses, Status: "paused"})
	after, did := Step(s, HoldOver{3})
	if after.Phase != Running || !slices.Contains(did, Action(LetGo{3})) {
		t.Errorf("%q", follows(s, after, did))
	}
}

// TestHoldEndsWithoutAStop: QEMU tells of no STOP if the guest stood before. The guest does not stay held.
func TestHoldEndsWithoutAStop(t *testing.T) {
	for _, name := range []string{"stopping for a job", "stopping for a job that is over"} {
		s := reach(find(t, states(), name))
		for _, e := range []Event{Expired{HoldTimer}, LetGoAnswered{Job: 3}} {
			s, _ = Step(s, e)
		}
		if s.Hold != (Hold{}) {
			t.Errorf("%s: %+v", name, s.Hold)
		}
	}
}
