package migration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/qmp"
)

// Target receives a guest. Its QEMU was started with the source's Machine and -incoming defer.
type Target struct {
	QEMU *qmp.Client
	// Changed gets a value after QEMU has sent an event.
	Changed <-chan struct{}
	// Whole, if set, is called once the copied disks are as the guest left them.
	Whole func()

	listener *net.UnixListener // of QEMU's NBD server; nil before the first Export
	nodes    []string          // that are exported
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
// If the guest's memory comes after it, trails is called once QEMU has all but the memory: the guest may run then. Receive
// returns when the memory is there. ErrNoReturn says that it does not come.
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
	all := false
	err = w.until(ctx, func() (bool, error) {
		m, err := t.QEMU.QueryMigrate(ctx)
		if err != nil || m.Status != qmp.MigrationPostCopy {
			all = m.Status == qmp.MigrationCompleted
			return all, errors.Join(err, failure(m), broken(m, false))
		}
		// QEMU has all but the memory when it takes the guest from inmigrate to paused (loadvm_postcopy_handle_run).
		status, err := t.QEMU.QueryStatus(ctx)
		return status.Status == qmp.StatusPaused, err
	})
	if err != nil {
		return fmt.Errorf("receive the guest: %w", err)
	}
	if err := t.unserve(ctx, w); err != nil {
		return err
	}
	if t.Whole != nil {
		t.Whole()
	}
	if all {
		return nil
	}
	trails()
	return t.awaitMemory(ctx, w, state)
}

// unanswered is how many questions in a row QEMU may leave without an answer after the channel has ended. Each waits for 10 s (package
// qmp).
const unanswered = 3

// awaitMemory waits for the memory of a guest that may run already. A QEMU that does not answer is asked again: its main loop may wait
// for a page of the guest's memory. Once the channel has ended, such a page never comes.
func (t *Target) awaitMemory(ctx context.Context, w *watcher, state *os.File) error {
	silent := 0
	return w.until(ctx, func() (bool, error) {
		m, err := t.QEMU.QueryMigrate(ctx)
		if err != nil && t.QEMU.Err() == nil {
			if hungUp(state) {
				silent++
			}
			if silent == unanswered {
				return false, fmt.Errorf("%w: the channel between the nodes has ended, and QEMU waits for memory", ErrNoReturn)
			}
			return false, nil
		}
		silent = 0
		return m.Status == qmp.MigrationCompleted, errors.Join(err, broken(m, true))
	})
}

// hungUp says whether the other end of a socket is closed. It leaves alone whether the socket blocks, which QEMU shares: (*os.File).Fd
// would change that.
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
func (t *Target) unserve(ctx context.Context, w *watcher) error {
	if t.listener == nil {
		return nil
	}
	defer t.Close()
	for _, node := range t.nodes {
		if err := command(ctx, "end the export of "+node, func(ctx context.Context) error { return t.QEMU.BlockExportDelete(ctx, exportID(node)) }); err != nil {
			return err
		}
	}
	err := w.until(ctx, func() (bool, error) {
		exports, err := t.QEMU.QueryBlockExports(ctx)
		return len(exports) == 0, err
	})
	if err != nil {
		return fmt.Errorf("wait for the end of the exports: %w", err)
	}
	return command(ctx, "end the service of disks", t.QEMU.NBDServerStop)
}

// Close closes the socket that QEMU's NBD server listens on.
func (t *Target) Close() {
	if t.listener != nil {
		t.listener.Close()
		t.listener = nil
	}
}
