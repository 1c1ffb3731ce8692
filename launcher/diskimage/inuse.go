package diskimage

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrInUse: another QEMU, or something else on the node, has the disk.
var ErrInUse = errors.New("the disk is in use")

// QEMU's image locks are on single bytes of a file (QEMU's
// include/block/block-common.h, block/file-posix.c): who may do something to an
// image holds the byte at permBase and the number of it, and who lets nobody else
// do it the one at unsharedBase and the number.
const (
	permBase     = 100
	unsharedBase = 200

	permRead  = 0
	permWrite = 1
)

// Free returns ErrInUse if QEMU would find the file locked by another one. Where
// the file system knows no locks, nothing is in use. The file stays unlocked:
// only QEMU's own lock keeps others away.
func Free(f *os.File, readOnly bool) error {
	conflicts := []int64{permBase + permWrite, unsharedBase + permRead}
	if !readOnly {
		conflicts = append(conflicts, unsharedBase+permWrite)
	}
	for _, start := range conflicts {
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: start, Len: 1}
		if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err == nil && lock.Type != unix.F_UNLCK {
			return fmt.Errorf("%w: another QEMU has a lock on %s", ErrInUse, f.Name())
		}
	}
	return nil
}
