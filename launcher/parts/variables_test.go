package parts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/diskimage"
	"github.com/kubeqemu/kubeqemu/launcher/disks"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestHeldVariablesAreQEMUsFile: what is held is QEMU's file, whatever is at its path by now, and it holds no lock of
// QEMU's.
func TestHeldVariablesAreQEMUsFile(t *testing.T) {
	for _, onClaim := range []bool{true, false} {
		path := filepath.Join(t.TempDir(), "variables.fd")
		if err := os.WriteFile(path, []byte("QEMU's"), 0o600); err != nil {
			t.Fatal(err)
		}
		files := map[string]*os.File{}
		if onClaim {
			qemus, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			files["variables"] = qemus
			if err := errors.Join(replace(path), unix.FcntlFlock(qemus.Fd(), unix.F_OFD_SETLK,
				&unix.Flock_t{Type: unix.F_WRLCK, Start: 101, Len: 1})); err != nil {
				t.Fatal(err)
			}
		}
		v := &Variables{}
		if err := v.Start(&control.StartRequest{Machine: qemuargs.Machine{
			Firmware: &qemuargs.Firmware{Variables: qemuargs.Variables{Path: path, InState: onClaim}}}}, files); err != nil {
			t.Fatal(err)
		}
		disks.CloseAll(files)
		if !onClaim {
			if err := replace(path); err != nil {
				t.Fatal(err)
			}
		}
		through := fmt.Sprintf("/proc/self/fd/%d", v.File().Fd())
		if data, err := os.ReadFile(through); err != nil || string(data) != "QEMU's" || v.File().Name() != path {
			t.Errorf("%s has %q (%v)", v.File().Name(), data, err)
		}
		held, size, kept := v.OnClaim()
		if kept != onClaim || kept && (held != through || size != qemuargs.VariablesBytes) {
			t.Errorf("on a claim (%t): %s, %d bytes, %t", onClaim, held, size, kept)
		}
		f, err := os.Open(path + ".old")
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(diskimage.Free(f, false), f.Close(), v.Close()); err != nil {
			t.Error(err)
		}
	}
}

// replace puts another file at the path of one.
func replace(path string) error {
	return errors.Join(os.Rename(path, path+".old"), os.WriteFile(path, []byte("another"), 0o600))
}

// TestNoVariables: a machine with a BIOS has no variables to hold.
func TestNoVariables(t *testing.T) {
	v := &Variables{}
	begin(t, v, &control.StartRequest{})
	_, _, kept := v.OnClaim()
	if err := v.Close(); err != nil || kept || v.File() != nil {
		t.Errorf("%v, %v", v.File(), err)
	}
}
