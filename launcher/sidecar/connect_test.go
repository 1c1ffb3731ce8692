package sidecar

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

func listen(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func within(t *testing.T, patience time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func TestConnect(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	l := listen(t, path)
	f, err := Connect(within(t, testkit.Patience), path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	theirs, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	if _, err := f.WriteString("hello"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := theirs.Read(got); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestConnectWaitsForTheProgram: the program comes while the launcher waits.
func TestConnectWaitsForTheProgram(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	connected := make(chan error)
	go func() {
		f, err := Connect(within(t, testkit.Patience), path)
		if err == nil {
			f.Close()
		}
		connected <- err
	}()
	listen(t, path)
	if err := <-connected; err != nil {
		t.Error(err)
	}
}

// TestHostileFolder: whoever has the folder with the socket leads the launcher nowhere, and does not hold it.
func TestHostileFolder(t *testing.T) {
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	l := listen(t, elsewhere)
	for name, c := range map[string]struct {
		put  func(path string) error
		want error
	}{
		"nothing":  {func(string) error { return nil }, unix.ENOENT},
		"link":     {func(path string) error { return os.Symlink(elsewhere, path) }, ErrNoSocket},
		"relative": {func(path string) error { return os.Symlink("../elsewhere", path) }, ErrNoSocket},
		"magic":    {func(path string) error { return os.Symlink("/proc/self/fd/0", path) }, ErrNoSocket},
		"FIFO":     {func(path string) error { return unix.Mkfifo(path, 0o600) }, ErrNoSocket},
		"file":     {func(path string) error { return os.WriteFile(path, nil, 0o600) }, ErrNoSocket},
		"folder":   {func(path string) error { return os.Mkdir(path, 0o700) }, ErrNoSocket},
		"datagrams": {func(path string) error {
			c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
			if err == nil {
				t.Cleanup(func() { c.Close() })
			}
			return err
		}, unix.EPROTOTYPE},
		"nobody listens": {func(path string) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err == nil {
				l.SetUnlinkOnClose(false)
				l.Close()
			}
			return err
		}, unix.ECONNREFUSED},
		// The queue of connections takes one more than its length.
		"nobody accepts": {func(path string) error {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			t.Cleanup(func() { unix.Close(fd) })
			if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
				return err
			}
			first, err := dial(path)
			if err == nil {
				t.Cleanup(func() { first.Close() })
			}
			return err
		}, unix.EAGAIN},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "socket")
			if err := c.put(path); err != nil {
				t.Fatal(err)
			}
			f, err := Connect(within(t, 100*time.Millisecond), path)
			if f != nil {
				f.Close()
			}
			if !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
	l.SetDeadline(time.Now().Add(100 * time.Millisecond))
	if c, err := l.Accept(); err == nil {
		c.Close()
		t.Error("the launcher was led to another socket")
	}
}

// TestFolderIsLink: the folder of the socket is the kubelet's mount, and no link.
func TestFolderIsLink(t *testing.T) {
	dir := t.TempDir()
	real := filepath.Join(dir, "real")
	if err := errors.Join(os.Mkdir(real, 0o700), os.Symlink(real, filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	listen(t, filepath.Join(real, "socket"))
	if f, err := Connect(within(t, time.Second), filepath.Join(dir, "link", "socket")); !errors.Is(err, unix.ENOTDIR) {
		f.Close()
		t.Errorf("%v, want %v", err, unix.ENOTDIR)
	}
}
