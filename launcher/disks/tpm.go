package disks

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/diskimage"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// OpenTPM opens the folder with the state of a machine's TPM, and makes it unless there is one from before. A guest
// that arrives from another launcher brings the state.
func OpenTPM(t *qemuargs.TPM, incoming bool) (*os.File, error) {
	if t.InState {
		f, err := diskimage.OpenTPM(filepath.Dir(t.Folder), filepath.Base(t.Folder), incoming)
		if err != nil {
			return nil, fmt.Errorf("open the TPM's state on the claim with the guest's state: %w", err)
		}
		return f, nil
	}
	if err := os.Mkdir(t.Folder, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the TPM's state: %w", err)
	}
	f, err := os.Open(t.Folder)
	if err != nil {
		return nil, fmt.Errorf("open the folder of the TPM's state: %w", err)
	}
	return f, nil
}

// SyncArrived has the state of a machine's TPM, which has arrived in an open folder, outlive the node. Without such a
// folder it does nothing.
func SyncArrived(t *qemuargs.TPM, folder *os.File) error {
	if folder == nil {
		return nil
	}
	return diskimage.SyncTPM(filepath.Dir(t.Folder), filepath.Base(t.Folder), folder)
}

// ArrivedTPM notes that the state of the TPM in an open folder is the one that counts: its guest has arrived from
// another launcher, and runs. After an error, which ArrivedTPM logs, it tries again until ctx ends: the guest runs all
// the same. The pauses begin with pause, and grow.
func ArrivedTPM(ctx context.Context, t *qemuargs.TPM, folder *os.File, pause time.Duration, log *slog.Logger) {
	for ; ; pause = min(2*pause, time.Minute) {
		err := diskimage.KeepTPM(filepath.Dir(t.Folder), filepath.Base(t.Folder), folder)
		if err == nil {
			return
		}
		log.Warn("until this succeeds, a start of the VM would find the TPM's state from before the migration",
			"error", err)
		if errors.Is(err, fs.ErrNotExist) {
			return // the folder has its number, or is gone
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// ForgetTPM removes the state of a TPM whose guest has not arrived. If that fails, the VM's next start does so.
func ForgetTPM(t *qemuargs.TPM, folder *os.File) {
	_ = diskimage.ForgetTPM(filepath.Dir(t.Folder), filepath.Base(t.Folder), folder)
}
