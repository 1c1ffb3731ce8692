package disks

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/diskimage"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestDescriptorIsOpenedAsQEMUWould: QEMU gets a descriptor as it would open the image itself, or
// none of an fdset fits (QEMU 9.1 and newer).
func TestDescriptorIsOpenedAsQEMUWould(t *testing.T) {
	dir := t.TempDir()
	if !diskimage.DirectWorks(dir) {
		t.Skip("NO O_DIRECT: the file system of temporary files has none")
	}
	if err := os.WriteFile(filepath.Join(dir, "disk.img"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, direct := range []bool{false, true} {
		for _, readOnly := range []bool{false, true} {
			m := &qemuargs.Machine{Disks: []qemuargs.Disk{{Name: "data", ReadOnly: readOnly,
				Image: qemuargs.Image{Path: filepath.Join(dir, "disk.img"), Format: qemuargs.Raw, Volume: qemuargs.FileVolume, Direct: direct}}}}
			files := map[string]*os.File{}
			if err := openVolumes(t.Context(), m, files, slog.New(slog.DiscardHandler)); err != nil {
				t.Fatal(err)
			}
			flags, err := unix.FcntlInt(files["disk/data"].Fd(), unix.F_GETFL, 0)
			CloseAll(files)
			want := map[bool]int{false: unix.O_RDWR, true: unix.O_RDONLY}[readOnly]
			if direct {
				want |= unix.O_DIRECT
			}
			if got := flags & (unix.O_ACCMODE | unix.O_DIRECT); err != nil || got != want {
				t.Errorf("direct %t, read-only %t: flags %#x, %v; want %#x", direct, readOnly, got, err, want)
			}
		}
	}
}

// stateMachine returns a machine whose UEFI variables are in a volume with the guest's state.
func stateMachine(t *testing.T) *qemuargs.Machine {
	t.Helper()
	dir := t.TempDir()
	f := &qemuargs.Firmware{Variables: qemuargs.Variables{Path: filepath.Join(dir, "state/nvram/variables.fd"), Template: filepath.Join(dir, "template.fd"), InState: true}}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "state"), 0o700), os.WriteFile(f.Variables.Template, make([]byte, qemuargs.VariablesBytes), 0o600)); err != nil {
		t.Fatal(err)
	}
	return &qemuargs.Machine{Firmware: f}
}

// heard is a handler of a log that tells of its first message.
type heard struct {
	slog.Handler
	once sync.Once
	told chan struct{}
}

func (h *heard) Enabled(context.Context, slog.Level) bool { return true }

func (h *heard) Handle(context.Context, slog.Record) error {
	h.once.Do(func() { close(h.told) })
	return nil
}

// TestVariablesInUseAreAwaited: the variables that another QEMU has are awaited, as disks are. After the wait QEMU's
// own lock decides.
func TestVariablesInUseAreAwaited(t *testing.T) {
	const name = "variables"
	m := stateMachine(t)
	files := map[string]*os.File{}
	if err := openVolumes(t.Context(), m, files, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	// As QEMU locks: its permission to write, which is byte 101 (include/block/block-common.h).
	if err := unix.FcntlFlock(files[name].Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK, Start: 101, Len: 1}); err != nil {
		t.Fatal(err)
	}
	log := &heard{told: make(chan struct{})}
	opened := make(chan error, 1)
	go func() {
		next := map[string]*os.File{}
		err := openVolumes(t.Context(), m, next, slog.New(log))
		CloseAll(next)
		opened <- err
	}()
	select {
	case <-log.told:
	case err := <-opened:
		t.Fatalf("the variables are opened while they are in use (%v)", err)
	}
	CloseAll(files)
	if err := <-opened; err != nil {
		t.Error(err)
	}
}
