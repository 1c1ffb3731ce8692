package parts

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestVariablesStayTheSameFile: the launcher reaches the file that QEMU has, whatever is at its path by now.
func TestVariablesStayTheSameFile(t *testing.T) {
	for _, onClaim := range []bool{true, false} {
		path := filepath.Join(t.TempDir(), "variables.fd")
		if err := os.WriteFile(path, []byte("QEMU's"), 0o600); err != nil {
			t.Fatal(err)
		}
		v := &Variables{}
		begin(t, v, &control.StartRequest{Machine: qemuargs.Machine{
			Firmware: &qemuargs.Firmware{Variables: qemuargs.Variables{Path: path, InState: onClaim}}}})
		if err := errors.Join(os.Rename(path, path+".old"), os.WriteFile(path, []byte("another"), 0o600)); err != nil {
			t.Fatal(err)
		}
		held, size, kept := v.OnClaim()
		if kept != onClaim || kept && size != qemuargs.VariablesBytes {
			t.Errorf("on a claim (%t): %t, %d bytes", onClaim, kept, size)
		}
		if kept {
			if data, err := os.ReadFile(held); err != nil || string(data) != "QEMU's" {
				t.Errorf("%s has %q (%v)", held, data, err)
			}
		}
		if v.File().Name() != path {
			t.Errorf("%s is held", v.File().Name())
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	}
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
