package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrBusy says that another importer has the disk: a pod that was deleted by force may still write.
var ErrBusy = errors.New("another importer still fills this disk")

// lockFolder takes the lock of a file's folder, which ends with the process. The lock is not on the file itself:
// on NFS it would be in the way of qemu-img's own locks. Storage without such locks gives none.
func lockFolder(file string) (*os.File, error) {
	folder, err := os.Open(filepath.Dir(file))
	if err != nil {
		return nil, fmt.Errorf("lock the disk: %w", err)
	}
	if err := unix.Flock(int(folder.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		folder.Close()
		return nil, ErrBusy
	}
	return folder, nil
}
