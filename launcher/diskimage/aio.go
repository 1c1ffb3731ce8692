package diskimage

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// nativeEvents is the size of the context that QEMU asks for where the I/O is native, one for each thread that serves
// disks (MAX_EVENTS in block/linux-aio.c).
const nativeEvents = 1024

// ProbeAIO tries which kinds of I/O the kernel and the pod's seccomp profile permit. procfs is where the kernel tells
// how much of the node's room for native I/O is taken.
func ProbeAIO(procfs string) qemuargs.AIOFacts {
	facts := qemuargs.AIOFacts{Native: nativeWorks(), IOURing: ioURingWorks()}
	taken, err := number(filepath.Join(procfs, "sys/fs/aio-nr"))
	room, err2 := number(filepath.Join(procfs, "sys/fs/aio-max-nr"))
	facts.NativePlenty = facts.Native && err == nil && err2 == nil && taken < room/2
	return facts
}

func nativeWorks() bool {
	var context uintptr
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, nativeEvents, uintptr(unsafe.Pointer(&context)), 0); errno != 0 {
		return false
	}
	_, _, errno := unix.Syscall(unix.SYS_IO_DESTROY, context, 0, 0)
	return errno == 0
}

func ioURingWorks() bool {
	var params [120]byte // struct io_uring_params of the kernel's include/uapi/linux/io_uring.h
	const entries = 1
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, entries, uintptr(unsafe.Pointer(&params)), 0)
	if errno != 0 {
		return false
	}
	unix.Close(int(fd))
	return true
}

// number reads a file of the kernel's that holds a number.
func number(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 32))
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return n, nil
}
