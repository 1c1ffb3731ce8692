package migration

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/qmp"
)

// TestSlowProgressIsNoStall: a rest that gets smaller is no stall, however slowly. A rest that does not is one, once
// the limit is over.
func TestSlowProgressIsNoStall(t *testing.T) {
	now := time.Unix(0, 0)
	s := stall{limit: 10 * time.Second, now: func() time.Time { return now }}
	for _, look := range []struct {
		seconds   int64
		remaining int64
		stalls    bool
	}{
		{0, 100, false}, {9, 100, false}, {10, 99, false}, {20, 150, false}, {21, 99, true}, {22, 98, false}, {32, 98, false}, {33, 120, true},
	} {
		now = time.Unix(look.seconds, 0)
		if err := s.look(look.remaining); errors.Is(err, ErrTimeout) != look.stalls {
			t.Errorf("after %d s, with %d bytes left: %v", look.seconds, look.remaining, err)
		}
	}
}

// TestOnlyQEMUsWordEndsAMigration: only QEMU's word ends a migration.
func TestOnlyQEMUsWordEndsAMigration(t *testing.T) {
	for status, want := range map[string]error{"": nil, "active": nil, "device": nil, qmp.MigrationPreSwitchover: nil, qmp.MigrationCompleted: nil,
		qmp.MigrationFailed: errFailed, qmp.MigrationCancelled: context.Canceled} {
		if got := failure(qmp.Migration{Status: status}); !errors.Is(got, want) || (got == nil) != (want == nil) {
			t.Errorf("status %q: %v, want %v", status, got, want)
		}
	}
	if got := failure(qmp.Migration{Status: qmp.MigrationFailed, Error: "no device"}); got == nil || got.Error() != "no device" {
		t.Errorf("a reason of QEMU's becomes %v", got)
	}
}

// TestTimeoutIsTheCause: a migration that took too long says so, and not that its context ended.
func TestTimeoutIsTheCause(t *testing.T) {
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Nanosecond, ErrTimeout)
	defer cancel()
	<-ctx.Done()
	if got := cause(ctx, ctx.Err()); !errors.Is(got, ErrTimeout) {
		t.Errorf("the cause is %v", got)
	}
	other := errors.New("x")
	if got := cause(ctx, other); !errors.Is(got, other) {
		t.Errorf("another error becomes %v", got)
	}
}

// TestNothingIsAskedAboutDisksThatAreNotCopied: without copied disks, QEMU is asked nothing about them. The guest stands still at the switchover, and each question would
// prolong that. There is no QEMU here to ask.
func TestNothingIsAskedAboutDisksThatAreNotCopied(t *testing.T) {
	w := watch(nil)
	defer w.stop()
	s := &Source{Limits: Limits{Stall: time.Second}}
	m, err := s.mirror(t.Context(), w, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.complete(t.Context(), w), m.drop(t.Context(), w)); err != nil {
		t.Error(err)
	}
}

// TestReplacedVariablesKeepTheGuest: the file that QEMU has counts, and not what others put in its place since. A file that was replaced keeps the guest from moving.
func TestReplacedVariablesKeepTheGuest(t *testing.T) {
	if at, err := (&Source{}).written(); err != nil || !at.IsZero() {
		t.Errorf("without UEFI: %v, %v", at, err)
	}
	path := filepath.Join(t.TempDir(), "variables.fd")
	create := func() error { return os.WriteFile(path, []byte("v"), 0o600) }
	for name, c := range map[string]struct {
		change func() error
		want   error
		later  bool
	}{
		"untouched":    {func() error { return nil }, nil, false},
		"written":      {func() error { return os.Chtimes(path, time.Time{}, time.Unix(2000, 0)) }, nil, true},
		"another file": {func() error { return errors.Join(os.Rename(path, path+".old"), create()) }, errReplaced, false},
		"a link to it": {func() error { return errors.Join(os.Rename(path, path+".old"), os.Symlink(path+".old", path)) }, errReplaced, false},
		"no file":      {func() error { return os.Remove(path) }, os.ErrNotExist, false},
	} {
		_ = os.Remove(path)
		if err := errors.Join(create(), os.Chtimes(path, time.Time{}, time.Unix(1000, 0))); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		s := &Source{Variables: f}
		before, err := s.written()
		if err != nil || !before.Equal(time.Unix(1000, 0)) {
			t.Errorf("%s: before %v, %v", name, before, err)
		}
		if err := c.change(); err != nil {
			t.Fatal(err)
		}
		after, err := s.written()
		if !errors.Is(err, c.want) || err == nil && after.After(before) != c.later {
			t.Errorf("%s: %v, %v", name, after, err)
		}
		f.Close()
	}
}
