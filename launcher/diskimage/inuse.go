package diskimage

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrInUse: another QEMU, or something else on the node, has the disk.
var ErrInUse = errors.New("the disk is in use")

// QEMU's image locks are on single bytes of a file (QEMU's include/block/block-common.h,
// block/file-posix.c). A process that may do something to an image locks the byte at permBase
// plus the number of that permission. A process that lets nobody else do it locks the byte at
// unsharedBase plus the number.
const (
	permBase     = 100
	unsharedBase = 200

	permRead  = 0
	permWrite = 1
)

// Free returns ErrInUse if another QEMU has locked the file. On a file system without locks
// nothing is in use. Free takes no lock: only QEMU's own lock keeps others away.
func Free(f *os.File, readOnly bool) error {
	conflicts := []int64{permBase + permWrite, unsharedBase + permRead}
	if !readOnly {
		conflicts = append(conflicts, unsharedBase+permWrite)
	}
	return free(f, conflicts)
}

// FreeToShare does what Free does, for a disk that others may write to as well.
func FreeToShare(f *os.File, readOnly bool) error {
	if readOnly {
		return free(f, []int64{unsharedBase + permRead})
	}
	return free(f, []int64{unsharedBase + permRead, unsharedBase + permWrite})
}

func free(f *os.File, conflicts []int64) error {
	for _, start := range conflicts {
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: start, Len: 1}
		if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err == nil && lock.Type != unix.F_UNLCK {
			return fmt.Errorf("%w: another QEMU has a lock on %s", ErrInUse, f.Name())
		}
	}
	return nil
}
