package life

import (
	"slices"
	"testing"
)

// TestWhoMayMove: a guest may leave that has run here and is wholly here, and a guest may come where QEMU waits for
// one. For anything else a guest must not be on its way.
func TestWhoMayMove(t *testing.T) {
	for state, want := range map[string]struct{ moveable, stays bool }{
		"running": {true, true}, "paused": {true, true}, "receiving": {true, false},
		"starting": {false, true}, "paused from the start": {false, true}, "shutting down": {false, true},
		"copying": {false, false}, "left": {false, false}, "received": {false, false},
		"running, memory coming": {false, false},
	} {
		s := reach(find(t, states(), state))
		if s.Moveable() != want.moveable || s.Stays() != want.stays {
			t.Errorf("%s: moveable %t, stays %t", state, s.Moveable(), s.Stays())
		}
	}
}

// TestGuestOfAFailedMigration: QEMU tells whether it has let the guest run on. The next migration begins as any does.
func TestGuestOfAFailedMigration(t *testing.T) {
	back := reach(slices.Concat(find(t, states(), "switching, to trail"), []Event{MigrationEnded{Err: errWhy}}))
	after, did := Step(back, MigrateAsked{})
	if got, want := follows(back, after, did),
		[]string{"→ leaving Copying;", "post-copy false", "⇒ Send"}; !slices.Equal(got, want) {
		t.Errorf("asked to migrate again: %q", got)
	}
	told := ReasonTold{Pause: back.Pauses, Status: "postmigrate"}
	after, did = Step(back, told)
	if got, want := follows(back, after, did),
		[]string{"→ Paused;", `pause "postmigrate"`, "⇒ Report"}; !slices.Equal(got, want) {
		t.Errorf("the guest stands still: %q", got)
	}
	if again, did := Step(after, told); again != after || len(did) > 0 {
		t.Errorf("told again: %q", follows(after, again, did))
	}
	running, _ := Step(back, MigrateAsked{})
	if after, did := Step(running, told); after != running || len(did) > 0 {
		t.Errorf("told of a guest that leaves again: %q", follows(running, after, did))
	}
}
