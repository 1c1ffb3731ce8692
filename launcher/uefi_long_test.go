//go:build long

package launcher

import (
	"bytes"
	"os"
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// TestPostCopyUEFI: the target's QEMU writes the variables to its own file while the flash chips' contents are on
// their way still.
func TestPostCopyUEFI(t *testing.T) {
	t.Parallel()
	m := newUEFIMove(t)
	m.permitPostCopy()
	request := late // OVMF has some 15 MiB that are not zero
	request.BytesPerSecond = 2 << 20
	m.postCopy(request)
	sent, err := os.ReadFile(m.source.request.Machine.Firmware.Variables.Path)
	m.source.must(err)
	m.target.must(m.target.call(control.CommandRun, control.RunRequest{}, nil))
	m.target.until(control.StateRunning)
	if job := m.source.state().Jobs[0]; job.Finished() {
		t.Fatal("the memory has arrived at once: nothing is tested")
	}
	m.source.jobEnded()
	m.target.jobEnded()
	m.source.must(m.source.call(control.CommandRelease, nil, nil))
	m.source.expectEnd(control.ReasonMigrated, "another pod")
	if got := m.target.written(); !bytes.Equal(got, sent) {
		t.Error("the target's variables are not the source's")
	}
	m.target.must(m.target.call(control.CommandReset, nil, nil))
	m.target.stdout.Expect("BdsDxe: ")
}

// TestMigrateUEFIOnASharedVolume: source and target have the same volume. The guest goes on with its variables, and
// keeps them there.
func TestMigrateUEFIOnASharedVolume(t *testing.T) {
	t.Parallel()
	volume := t.TempDir()
	m := &move{source: launch(t)}
	m.source.uefi(false)
	m.source.keepsVariables(volume)
	m.source.must(m.source.call(control.CommandStart, m.source.request, nil))
	m.source.until(control.StateRunning)
	left := m.source.tried()
	m.aimUEFI()
	m.begin(limits)
	m.target.until(control.StateReceived)
	m.source.until(control.StateMoved)
	m.runsAtTarget()
	if got := m.target.written(); !bytes.Equal(got, left) {
		t.Error("the variables have changed")
	}
}
