package diskimage

import (
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// FolderBlocks returns the block size of the file system of a folder, as the size of a disk's sectors: a file system
// has one size. It is nil where the kernel does not say it.
func FolderBlocks(dir string) *qemuargs.BlockSizes {
	var statfs unix.Statfs_t
	if err := unix.Statfs(dir, &statfs); err != nil {
		return nil
	}
	return fileBlocks(&statfs)
}

func fileBlocks(statfs *unix.Statfs_t) *qemuargs.BlockSizes {
	if statfs.Bsize <= 0 || statfs.Bsize > math.MaxUint32 {
		return nil
	}
	return &qemuargs.BlockSizes{Logical: uint32(statfs.Bsize), Physical: uint32(statfs.Bsize)}
}

// deviceBlocks returns the sizes of a block device. They are nil where the kernel does not say them.
func deviceBlocks(f *os.File, sysfs string) *qemuargs.BlockSizes {
	conn, err := f.SyscallConn()
	if err != nil {
		return nil
	}
	var blocks *qemuargs.BlockSizes
	err = conn.Control(func(fd uintptr) {
		logical, err := unix.IoctlGetInt(int(fd), unix.BLKSSZGET)
		if err != nil || logical <= 0 || logical > math.MaxInt32 {
			return
		}
		physical, err := unix.IoctlGetUint32(int(fd), unix.BLKPBSZGET)
		if err != nil || int64(physical) < int64(logical) {
			physical = uint32(logical)
		}
		blocks = &qemuargs.BlockSizes{Logical: uint32(logical), Physical: physical}
		var stat unix.Stat_t
		if unix.Fstat(int(fd), &stat) != nil {
			return
		}
		path := fmt.Sprintf("%s/dev/block/%d:%d/queue/discard_granularity", sysfs, unix.Major(stat.Rdev), unix.Minor(stat.Rdev))
		if n, err := number(path); err == nil && n > 0 && n <= math.MaxUint32 {
			granularity := uint32(n)
			blocks.DiscardGranularity = &granularity
		}
	})
	if err != nil {
		return nil
	}
	return blocks
}
