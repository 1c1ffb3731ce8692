package netsetup

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

var (
	// ErrNotNetNS means that a file is no network namespace.
	ErrNotNetNS = errors.New("not a network namespace")
	// ErrOwnNetNS means that a network namespace is the caller's own, which for a
	// handler is the host's.
	ErrOwnNetNS = errors.New("the caller's own network namespace")
)

// CheckNetNS checks a file that came from an unprivileged process: it must be a
// network namespace (else ErrNotNetNS) and another than the calling thread's
// (else ErrOwnNetNS). Do not call it from within ns.NetNS.Do.
func CheckNetNS(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("check network namespace: %w", err)
	}
	var checked error
	if err := conn.Control(func(fd uintptr) { checked = checkNetNS(int(fd)) }); err != nil {
		return fmt.Errorf("check network namespace: %w", err)
	}
	if checked != nil {
		return fmt.Errorf("check network namespace: %w", checked)
	}
	return nil
}

func checkNetNS(fd int) error {
	// Before any call that the file's own file system or driver would answer (a
	// FUSE server could hang it): only nsfs gives such a name, for every other
	// path begins with a slash.
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return err
	}
	if !strings.HasPrefix(name, "net:[") {
		return ErrNotNetNS
	}
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil {
		return errors.Join(ErrNotNetNS, err)
	}
	if kind != unix.CLONE_NEWNET {
		return ErrNotNetNS
	}
	var theirs, ours unix.Stat_t
	if err := unix.Fstat(fd, &theirs); err != nil {
		return err
	}
	// Of this thread, and held to it: the main thread, of which /proc/self/ns
	// tells, may at this moment be inside a pod's namespace for another goroutine.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Stat("/proc/thread-self/ns/net", &ours); err != nil {
		return fmt.Errorf("stat own namespace: %w", err)
	}
	if theirs.Dev == ours.Dev && theirs.Ino == ours.Ino {
		return ErrOwnNetNS
	}
	return nil
}

// FromFile makes a NetNS of a file received from an unprivileged process, after
// CheckNetNS. The NetNS has a descriptor of its own: both are to be closed.
func FromFile(f *os.File) (ns.NetNS, error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	var netns ns.NetNS
	var opened error
	err = conn.Control(func(fd uintptr) {
		if opened = checkNetNS(int(fd)); opened == nil {
			netns, opened = ns.GetNS(fmt.Sprintf("/proc/self/fd/%d", fd))
		}
	})
	if err := errors.Join(err, opened); err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	return netns, nil
}
