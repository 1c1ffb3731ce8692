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
	// ErrForeignNetNS means that a network namespace was not made by the host's root,
	// and so by no container runtime.
	ErrForeignNetNS = errors.New("a network namespace that no container runtime made")
)

// CheckNetNS checks a file that came from an unprivileged process. It must be a network
// namespace (else ErrNotNetNS), another than the calling thread's (else ErrOwnNetNS), and one
// that belongs to the host (else ErrForeignNetNS): a namespace that a pod's own process makes
// by unshare(2) may have any address. Do not call CheckNetNS from within ns.NetNS.Do.
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
	// This comes before any call that the file's own file system or driver would answer, which
	// a FUSE server could make hang. Only nsfs names a file so: a path on any other file system
	// begins with a slash.
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
	// Compare with this thread's namespace, and stay on the thread. /proc/self/ns is the main
	// thread's, which may at this moment be inside a pod's namespace for another goroutine.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Stat("/proc/thread-self/ns/net", &ours); err != nil {
		return fmt.Errorf("stat own namespace: %w", err)
	}
	if theirs.Dev == ours.Dev && theirs.Ino == ours.Ino {
		return ErrOwnNetNS
	}
	return checkOwner(fd)
}

// checkOwner checks the user namespace that owns a network namespace: root in the owner has all
// rights in the network namespace. The owner must be the caller's own user namespace, or, for
// pods with a user namespace (hostUsers: false), a child of it that root made. A grandchild, or
// a child that another user made, is a tenant's.
func checkOwner(netns int) error {
	own, err := unix.Open("/proc/thread-self/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open own user namespace: %w", err)
	}
	defer unix.Close(own)
	owner, err := unix.IoctlRetInt(netns, unix.NS_GET_USERNS)
	if errors.Is(err, unix.EPERM) { // not beneath ours at all
		return ErrForeignNetNS
	}
	if err != nil {
		return fmt.Errorf("ask for the owner: %w", err)
	}
	defer unix.Close(owner)
	if same, err := sameFile(owner, own); err != nil || same {
		return err
	}
	parent, err := unix.IoctlRetInt(owner, unix.NS_GET_PARENT)
	if err != nil {
		return fmt.Errorf("ask for the owner's parent: %w", err)
	}
	defer unix.Close(parent)
	same, err := sameFile(parent, own)
	if err != nil {
		return err
	}
	user, err := unix.IoctlGetUint32(owner, nsGetOwnerUID)
	if err != nil {
		return fmt.Errorf("ask who made the owner: %w", err)
	}
	if !same || user != 0 {
		return ErrForeignNetNS
	}
	return nil
}

// nsGetOwnerUID is NS_GET_OWNER_UID of linux/nsfs.h, which x/sys has not.
const nsGetOwnerUID = 0xb704

func sameFile(a, b int) (bool, error) {
	var first, second unix.Stat_t
	if err := errors.Join(unix.Fstat(a, &first), unix.Fstat(b, &second)); err != nil {
		return false, fmt.Errorf("stat user namespace: %w", err)
	}
	return first.Dev == second.Dev && first.Ino == second.Ino, nil
}

// FromFile makes a NetNS of a file received from an unprivileged process, after CheckNetNS. The
// NetNS has a descriptor of its own: the caller closes both.
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
