package launcher

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// keepsVariables has a machine with UEFI keep its variables in a volume with the guest's state.
func (v *vm) keepsVariables(volume string) {
	f := v.request.Machine.Firmware
	f.Variables.Path, f.Variables.InState = filepath.Join(volume, "nvram/variables.fd"), true
	v.request.Needs = v.request.NeededFeatures()
}

// TestStateUEFI: a guest finds the variables of the guest before it, and a link in the volume keeps the guest from starting.
func TestStateUEFI(t *testing.T) {
	t.Parallel()
	volume := t.TempDir()
	start := func() *vm {
		v := launch(t)
		v.uefi(false)
		v.keepsVariables(volume)
		v.must(v.call(control.CommandStart, v.request, nil))
		return v
	}
	first := start()
	first.until(control.StateRunning)
	left := first.written()
	first.stop()

	// A mark where OVMF keeps nothing: OVMF's variables end long before the spare block.
	path := filepath.Join(volume, "nvram/variables.fd")
	left[len(left)-1] ^= 0x55
	first.must(os.WriteFile(path, left, 0o660))
	second := start()
	second.until(control.StateRunning)
	second.stdout.Expect("BdsDxe: ")
	if now, err := os.ReadFile(path); err != nil || len(now) != qemuargs.VariablesBytes || now[len(now)-1] != left[len(left)-1] {
		t.Errorf("the second guest began anew (%v)", err)
	}
	second.stop()

	outside := filepath.Join(t.TempDir(), "outside")
	second.must(os.Rename(path, outside))
	second.must(os.Symlink(outside, path))
	before, err := os.ReadFile(outside)
	second.must(err)
	third := start()
	third.expectEnd(control.ReasonStartFailed, "/nvram/variables.fd is a symbolic link")
	if after, err := os.ReadFile(outside); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the link was written through (%v)", err)
	}
}

// TestMigrateStateUEFI: source and target have the same volume. The guest goes on with its variables, and keeps them there.
func TestMigrateStateUEFI(t *testing.T) {
	t.Parallel()
	volume := t.TempDir()
	m := &move{source: launch(t)}
	m.source.uefi(false)
	m.source.keepsVariables(volume)
	m.source.must(m.source.call(control.CommandStart, m.source.request, nil))
	m.source.until(control.StateRunning)
	left := m.source.written()
	m.aimUEFI()
	m.begin(limits)
	m.target.until(control.StateReceived)
	m.source.until(control.StateMoved)
	m.target.must(m.target.call(control.CommandRun, control.RunRequest{}, nil))
	m.target.until(control.StateRunning)
	m.source.must(m.source.call(control.CommandRelease, nil, nil))
	m.source.expectEnd(control.ReasonMigrated, "another pod")
	if got := m.target.written(); !bytes.Equal(got, left) {
		t.Error("the variables have changed")
	}
}
