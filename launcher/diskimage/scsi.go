package diskimage

import (
	"os"

	"golang.org/x/sys/unix"
)

// sgGetVersion is SG_GET_VERSION_NUM of the kernel's include/scsi/sg.h. QEMU asks the same of a device that is to take
// a guest's SCSI commands, and wants version 3 at least (hw/scsi/scsi-disk.c).
const (
	sgGetVersion   = 0x2282
	sgLeastVersion = 30000
)

// takesSCSI reports whether a device takes SCSI commands.
func takesSCSI(f *os.File) bool {
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	takes := false
	err = conn.Control(func(fd uintptr) {
		version, err := unix.IoctlGetInt(int(fd), sgGetVersion)
		takes = err == nil && version >= sgLeastVersion
	})
	return err == nil && takes
}
