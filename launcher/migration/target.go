package migration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/qmp"
)

// Target receives a guest. Its QEMU was started with the source's Machine and -incoming defer.
type Target struct {
	QEMU *qmp.Client
	// Changed gets a value after QEMU has sent an event.
	Changed <-chan struct{}
	// Whole, if set, is called once the copied disks and the state of the machine are as the guest left them. It may wait
	// for storage. Its error ends a migration that the source can take back. A guest whose memory still comes has no other
	// place, and does not wait for Whole.
	Whole func() error

	listener *net.UnixListener // of QEMU's NBD server; nil before the first Export
	nodes    []string          // that are exported
	taken    []taken
}

// serverFD is the name by which QEMU knows the socket of its NBD server.
const serverFD = "nbd-server"

// Export exports a disk's node for the source's mirror, and returns one end of a connection to the
// export.
func (t *Target) Export(ctx context.Context, node string) (*os.File, error) {
	if t.listener == nil {
		if err := t.serve(ctx); err != nil {
			return nil, err
		}
	}
	err := command(ctx, "export disk "+node, func(ctx context.Context) error { return t.QEMU.BlockExportAdd(ctx, exportID(node), node) })
	if err != nil {
		return nil, err
	}
	t.nodes = append(t.nodes, node)
	address := t.listener.Addr().(*net.UnixAddr)
	conn, err := net.DialUnix("unix", nil, address)
	if err != nil {
		return nil, fmt.Errorf("connect to the export of %s: %w", node, err)
	}
	defer conn.Close()
	file, err := conn.File()
	if err != nil {
		return nil, fmt.Errorf("take the connection to the export of %s: %w", node, err)
	}
	return file, nil
}

// maxExports is more than a guest has disks.
const maxExports = 64

// serve starts QEMU's NBD server on a socket without a name in any file system: the kernel makes
// up a name in the pod's network namespace (unix(7), autobind).
func (t *Target) serve(ctx context.Context) error {
	listener, err := autobind()
	if err != nil {
		return fmt.Errorf("listen for mirrors: %w", err)
	}
	file, err := listener.File()
	if err != nil {
		listener.Close()
		return fmt.Errorf("listen for mirrors: %w", err)
	}
	defer file.Close()
	err = command(ctx, "serve disks", func(ctx context.Context) error {
		if err := t.QEMU.GetFD(ctx, serverFD, file); err != nil {
			return err
		}
		return t.QEMU.NBDServerStart(ctx, serverFD, maxExports)
	})
	if err != nil {
		listener.Close()
		return err
	}
	t.listener = listener
	return nil
}

func autobind() (*net.UnixListener, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), serverFD)
	defer file.Close()
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{}), unix.Listen(fd, maxExports)); err != nil {
		return nil, err
	}
	listener, err := net.FileListener(file)
	if err != nil {
		return nil, err
	}
	return listener.(*net.UnixListener), nil
}

func exportID(node string) string { return "export-" + node }

// PermitPostCopy lets the guest's memory come after the guest. The error is QEMU's reason why it cannot: it cannot use
// userfaultfd(2), for example. A source that is not permitted the same sends the memory first.
func (t *Target) PermitPostCopy(ctx context.Context) error {
	return command(ctx, "permit post-copy", func(ctx context.Context) error {
		return t.QEMU.SetMigrationCapabilities(ctx, map[string]bool{qmp.CapabilityPostCopy: true})
	})
}

// Receive receives the guest from QEMU's end of a channel. When Receive returns nil, QEMU has all
// of the guest. The guest's CPUs are stopped until Cont, and QEMU has no lock on a disk until then.
//
// If the guest's memory comes after it, trails is called once QEMU has all but the memory: the guest may run then.
// Receive returns when the memory is there. ErrNoReturn says that it does not come.
func (t *Target) Receive(ctx context.Context, state *os.File, trails func()) error {
	w := watch(t.Changed)
	defer w.stop()
	err := command(ctx, "receive the guest", func(ctx context.Context) error {
		if err := t.QEMU.SetMigrationCapabilities(ctx, capabilities()); err != nil {
			return err
		}
		if err := t.QEMU.GetFD(ctx, stateFD, state); err != nil {
			return err
		}
		return t.QEMU.MigrateIncoming(ctx, stateFD)
	})
	if err != nil {
		return err
	}
	all, lost := false, func() bool { return hungUp(state) }
	err = w.until(ctx, func() (bool, error) {
		m, err := insist(ctx, t.QEMU, lost, t.QEMU.QueryMigrate)
		if err != nil || m.Status != qmp.MigrationPostCopy {
			all = m.Status == qmp.MigrationCompleted
			return all, errors.Join(err, failure(m), broken(m, false))
		}
		// QEMU has all but the memory when it takes the guest from inmigrate to paused (loadvm_postcopy_handle_run).
		status, err := insist(ctx, t.QEMU, lost, t.QEMU.QueryStatus)
		return status.Status == qmp.StatusPaused, err
	})
	if err != nil {
		return fmt.Errorf("receive the guest: %w", err)
	}
	if err := t.unserve(ctx, w, lost); err != nil {
		return err
	}
	if err := t.whole(); err != nil {
		return err
	}
	if all {
		if t.Whole == nil {
			return nil
		}
		return t.Whole()
	}
	trails()
	noted := t.noteWhole()
	if err := t.awaitMemory(ctx, w, lost); err != nil {
		return err
	}
	select { // the guest runs, but the source keeps what it has until all of the state is on the disk here
	case <-noted:
	case <-ctx.Done():
	}
	return nil
}

// noteWhole calls Whole, which says itself what goes wrong. The channel that noteWhole returns is closed then. Close
// does not wait for Whole: nothing ends a wait for storage but the storage.
func (t *Target) noteWhole() <-chan struct{} {
	noted := make(chan struct{})
	go func() {
		defer close(noted)
		if t.Whole != nil {
			_ = t.Whole()
		}
	}()
	return noted
}

// awaitMemory waits for the memory of a guest that may run already.
func (t *Target) awaitMemory(ctx context.Context, w *watcher, lost func() bool) error {
	return w.until(ctx, func() (bool, error) {
		m, err := insist(ctx, t.QEMU, lost, t.QEMU.QueryMigrate)
		if errors.Is(err, errSilent) {
			err = fmt.Errorf("%w: %w", ErrNoReturn, err)
		}
		return m.Status == qmp.MigrationCompleted, errors.Join(err, broken(m, true))
	})
}

// hungUp reports whether the other end of a socket is closed. It leaves alone whether the socket blocks, which QEMU
// shares: (*os.File).Fd would change that.
func hungUp(socket *os.File) (hung bool) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(poll, 0)
		hung = err == nil && n == 1 && poll[0].Revents&(unix.POLLRDHUP|unix.POLLHUP) != 0
	})
	return hung && err == nil
}

// unserve ends the exports, so that only the guest writes to the disks.
func (t *Target) unserve(ctx context.Context, w *watcher, lost func() bool) error {
	if t.listener == nil {
		return nil
	}
	defer t.Close()
	// The guest may be able to run here alone, and so QEMU has as long as the guest may run nowhere.
	ctx, stop := context.WithTimeout(ctx, unserveTimeout)
	defer stop()
	for _, node := range t.nodes {
		if err := t.QEMU.BlockExportDelete(ctx, exportID(node)); err != nil {
			return fmt.Errorf("end the export of %s: %w", node, err)
		}
	}
	err := w.until(ctx, func() (bool, error) {
		exports, err := insist(ctx, t.QEMU, lost, t.QEMU.QueryBlockExports)
		return len(exports) == 0, err
	})
	if err != nil {
		return fmt.Errorf("wait for the end of the exports: %w", err)
	}
	if err := t.QEMU.NBDServerStop(ctx); err != nil {
		return fmt.Errorf("end the service of disks: %w", err)
	}
	return nil
}

// unserveTimeout is virt-controller's for a guest that left by post-copy and runs nowhere.
const unserveTimeout = 10 * time.Minute

// Close closes the socket that QEMU's NBD server listens on, and the connections over which files come.
func (t *Target) Close() {
	for _, file := range t.taken {
		file.conn.Close()
	}
	if t.listener != nil {
		t.listener.Close()
		t.listener = nil
	}
}
