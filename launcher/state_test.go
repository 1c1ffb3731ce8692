package launcher

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// keepsVariables makes a machine with UEFI keep its variables in a volume with the guest's state.
func (v *vm) keepsVariables(volume string) {
	f := v.request.Machine.Firmware
	f.Variables.Path, f.Variables.InState = filepath.Join(volume, "nvram/variables.fd"), true
}

// TestUEFIVariablesOutliveTheirGuest: a guest finds the variables of the guest before it, and what a tenant puts in
// their place harms its own guest only. OVMF writes variables once for all of it: under emulation that takes half a
// minute.
func TestUEFIVariablesOutliveTheirGuest(t *testing.T) {
	t.Parallel()
	volume := t.TempDir()
	start := keeper(t, volume)
	first := start()
	first.until(control.StateRunning)
	left := first.tried()
	first.stop()
	path := filepath.Join(volume, "nvram/variables.fd")
	hostileVariables(t, start, path, left)
	garbledVariables(t, start, path, left)

	// The guest starts again when the tenant has mended that. A mark where OVMF keeps nothing: OVMF's variables end long
	// before the spare block.
	marked := bytes.Clone(left)
	marked[len(left)-1] ^= 0x55
	first.must(os.WriteFile(path, marked, 0o660))
	second := start()
	second.until(control.StateRunning)
	second.stdout.Expect("BdsDxe: ")
	if now, err := os.ReadFile(path); err != nil || len(now) != qemuargs.VariablesBytes ||
		now[len(now)-1] != marked[len(marked)-1] {
		t.Errorf("the second guest began anew (%v)", err)
	}
}

// aimCopied does what aim does, for a target that has another volume for the guest's state.
func (m *move) aimCopied(volume string) {
	m.source.Helper()
	m.target = launch(m.source.T, func(c *Config) { c.TPM = m.source.TPM })
	machine := m.source.request.Machine
	if machine.Firmware != nil {
		firmware := *machine.Firmware
		firmware.Variables.Path = filepath.Join(volume, "nvram/variables.fd")
		machine.Firmware = &firmware
	}
	if machine.TPM != nil {
		tpm := *machine.TPM
		tpm.Folder = filepath.Join(volume, "tpm")
		machine.TPM = &tpm
	}
	m.target.request.Machine, m.target.request.Incoming = machine, true
	m.target.must(m.target.call(control.CommandStart, m.target.request, nil))
	m.target.until(control.StateReceiving)
	m.connect(control.CommandOpenChannel, control.CommandOpenChannel, nil)
	if machine.Firmware != nil {
		m.connect(control.CommandMirrorDisk, control.CommandExportDisk, control.DiskRequest{Disk: control.VariablesDisk})
	}
}

// TestMigrateUEFIToAnotherVolume: the target has a volume of its own. The variables are there as soon as the guest
// can run there, and a guest that never runs there leaves them.
func TestMigrateUEFIToAnotherVolume(t *testing.T) {
	t.Parallel()
	volume := t.TempDir()
	m := &move{source: launch(t)}
	m.source.uefi(false)
	m.source.keepsVariables(t.TempDir())
	m.source.must(m.source.call(control.CommandStart, m.source.request, nil))
	m.source.until(control.StateRunning)
	m.source.tried()
	m.source.must(m.source.call(control.CommandPause, nil, nil))
	m.source.until(control.StatePaused)
	left, err := os.ReadFile(m.source.request.Machine.Firmware.Variables.Path)
	m.source.must(err)
	m.aimCopied(volume)
	m.begin(limits)
	m.target.until(control.StateReceived)
	m.source.until(control.StateMoved)
	has := func(when string) {
		t.Helper()
		if got, err := os.ReadFile(filepath.Join(volume, "nvram/variables.fd")); err != nil || !bytes.Equal(got, left) {
			t.Errorf("%s the target's volume has not the variables (%d bytes, %v)", when, len(got), err)
		}
	}
	has("before the guest may run")
	m.target.must(m.target.call(control.CommandRun, control.RunRequest{Paused: true}, nil))
	m.target.until(control.StatePaused)
	m.source.must(m.source.call(control.CommandRelease, nil, nil))
	m.source.expectEnd(control.ReasonMigrated, "another pod")
	m.target.stop()
	has("after the end of the guest, which was paused all the time,")
}

// TestMigrateTPMToAnotherVolume: the target has a volume of its own. If the target ends before it has given the TPM's
// folder a number, the VM's next start finds the TPM all the same.
func TestMigrateTPMToAnotherVolume(t *testing.T) {
	t.Parallel()
	home, volume, crashed := t.TempDir(), t.TempDir(), t.TempDir()
	m := &move{source: launchTPM(t)}
	m.source.keepsTPM(home)
	m.source.boot()
	sent := kept(t, home, "1")
	m.aimCopied(volume)
	m.begin(limits)
	m.target.until(control.StateReceived)
	m.source.until(control.StateMoved)
	// A crash of the node leaves this.
	m.source.must(os.CopyFS(filepath.Join(crashed, "tpm"), os.DirFS(filepath.Join(volume, "tpm"))))
	m.target.must(m.target.call(control.CommandRun, control.RunRequest{}, nil))
	m.target.until(control.StateRunning)
	m.source.must(m.source.call(control.CommandRelease, nil, nil))
	m.source.expectEnd(control.ReasonMigrated, "another pod")
	m.target.stop()
	for _, at := range []string{volume, crashed} {
		again := launchTPM(t)
		again.keepsTPM(at)
		again.boot()
		if !sameTPM(kept(t, at, "1"), sent) {
			t.Errorf("after the end of the target (crashed: %t) the next start has another TPM", at == crashed)
		}
		again.stop()
	}
}
