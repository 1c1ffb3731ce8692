// Package sidecar runs the programs that serve file systems (virtiofsd) and that connect guests to the pod network
// (passt), and connects QEMU to them. Each runs in a container of its own in the launcher's pod, and the launcher
// shares with the container a folder in memory that holds the program's socket.
package sidecar

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/imagefile"
)

const (
	// Patience is how long a program has to listen at its socket. The kubelet starts its container before the launcher's,
	// and a loaded node may take seconds to start a program.
	Patience = 30 * time.Second
	// interval is the time between two attempts.
	interval = 100 * time.Millisecond
)

// ErrNoSocket: there is something at the socket's path that is no socket.
var ErrNoSocket = errors.New("it is no socket")

// errNobody: there is no program that takes a connection.
var errNobody = errors.New("no program listens there")

// Connect connects to the program that listens at a socket, and returns the connection. It waits until the program
// listens, but not after ctx has ended. Whoever has the program's container may put anything into the socket's folder,
// and change it at any time. So Connect follows no link, connects to the very socket that it has checked, and waits for
// nothing in there: the program may not take the connection.
func Connect(ctx context.Context, socket string) (*os.File, error) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		conn, err := dial(socket)
		if err == nil || !passes(err) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", errNobody, err)
		case <-tick.C:
		}
	}
}

// passes reports whether the program may still come: its socket is not there, it does not listen, it has not taken a
// connection of before, or the kernel has no room for a connection now.
func passes(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) || imagefile.Scarce(err)
}

// dial never waits.
func dial(socket string) (*os.File, error) {
	folder, err := open(unix.AT_FDCWD, filepath.Dir(socket), unix.O_DIRECTORY, unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return nil, fmt.Errorf("open the folder of its socket: %w", err)
	}
	defer unix.Close(folder)
	// O_PATH touches nothing.
	at, err := open(folder, filepath.Base(socket), 0, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_XDEV)
	if err != nil {
		return nil, fmt.Errorf("find its socket: %w", err)
	}
	defer unix.Close(at)
	var stat unix.Stat_t
	if err := unix.Fstat(at, &stat); err != nil {
		return nil, fmt.Errorf("stat its socket: %w", err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, fmt.Errorf("find its socket: %w", ErrNoSocket)
	}
	conn, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket: %w", err)
	}
	// A connection that blocks would wait while the queue of connections is full.
	if err := unix.Connect(conn, &unix.SockaddrUnix{Name: "/proc/self/fd/" + strconv.Itoa(at)}); err != nil {
		unix.Close(conn)
		return nil, fmt.Errorf("connect to its socket: %w", err)
	}
	if err := unix.SetNonblock(conn, false); err != nil {
		unix.Close(conn)
		return nil, fmt.Errorf("set up the connection: %w", err)
	}
	return os.NewFile(uintptr(conn), filepath.Base(socket)), nil
}

func open(at int, name string, flags, resolve uint64) (int, error) {
	return unix.Openat2(at, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC | flags, Resolve: unix.RESOLVE_NO_MAGICLINKS | resolve})
}
