package local

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// TestNextRunRemovesLeftFolders: a folder that no process holds is removed by the next run, and others stay.
func TestNextRunRemovesLeftFolders(t *testing.T) {
	parent := testkit.ShortFolder(t)
	kept := testkit.ShortFolder(t)
	write(t, kept+"/disk.img", 10)
	left := filepath.Join(parent, folderPrefix+"left")
	write(t, left+"/overlay", 10)
	if err := os.Symlink(kept, left+"/image"); err != nil {
		t.Fatal(err)
	}
	write(t, parent+"/another/file", 10)
	held, err := makeFolder(parent)
	if err != nil {
		t.Fatal(err)
	}
	second, err := makeFolder(parent)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{left: false, held.path: true, second.path: true, parent + "/another/file": true, kept + "/disk.img": true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
	info, err := os.Stat(held.path)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("its mode is %v, %v", info.Mode(), err)
	}
	for _, f := range []*folder{held, second} {
		if err := f.remove(); err != nil {
			t.Error(err)
		}
	}
	if names, _ := os.ReadDir(parent); len(names) != 1 {
		t.Errorf("left: %v", names)
	}
	if f, err := makeFolder(write(t, filepath.Join(parent, strings.Repeat("x", 100), "d/file"), 1)[:len(parent)+103]); err == nil || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("a path that is too long: %+v, %v", f, err)
	}
}

// TestEachReasonHasItsExitCode: each reason for a VM's end has its exit code.
func TestEachReasonHasItsExitCode(t *testing.T) {
	for reason, want := range map[control.Reason]int{control.ReasonGuestShutdown: 0, control.ReasonShutdown: 0, control.ReasonNeverStarted: 1, control.ReasonStartFailed: 1,
		control.ReasonGuestPanic: 3, control.ReasonQEMUExited: 3, control.ReasonQMPLost: 3, control.ReasonGracePeriodOver: 4} {
		if got := (Ending{Termination: control.Termination{Reason: reason}}).Code(); got != want {
			t.Errorf("%s: %d, want %d", reason, got, want)
		}
		if got := (Ending{Termination: control.Termination{Reason: reason}, StopAfter: true}).Code(); got != 124 {
			t.Errorf("%s after --stop-after: %d", reason, got)
		}
	}
}
