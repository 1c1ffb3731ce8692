package control

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// Requests of FUSE, linux/fuse.h.
const (
	fuseLookup = 1
	fuseForget = 2
	fuseOpen   = 14
	fuseInit   = 26
)

// hanging returns a file of FUSE whose server answers nothing once it is open: neither
// fstat nor fstatfs, poll or close, so the test must leave it open. At the test's
// end all is answered with an error.
func hanging(t *testing.T) int {
	t.Helper()
	dir := t.TempDir()
	server, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("open /dev/fuse (run the tests as root): %v", err)
	}
	if err := unix.Mount("hanging", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server)); err != nil {
		t.Fatalf("mount FUSE (run the tests as root): %v", err)
	}
	go serveFUSE(server)
	type result struct {
		fd  int
		err error
	}
	done := make(chan result, 1)
	go func() {
		fd, err := unix.Open(dir+"/file", unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		done <- result{fd, err}
	}()
	t.Cleanup(func() {
		unix.Close(server)
		if err := unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	r := testkit.Receive(t, done, "a file of FUSE")
	if r.err != nil {
		t.Fatalf("open a file of FUSE: %v", r.err)
	}
	return r.fd
}

// serveFUSE answers until the file is open.
func serveFUSE(server int) {
	request := make([]byte, 1<<17)
	for {
		n, err := unix.Read(server, request)
		if err == unix.EINTR || err == unix.ENOENT {
			continue
		}
		if err != nil || n < 40 {
			return
		}
		opcode, unique := binary.NativeEndian.Uint32(request[4:]), binary.NativeEndian.Uint64(request[8:])
		var body []any
		switch opcode {
		case fuseInit: // struct fuse_init_out
			body = []any{uint32(7), uint32(31), uint32(0), uint32(0), uint16(16), uint16(12), uint32(4096), uint32(1), make([]byte, 36)}
		case fuseLookup: // struct fuse_entry_out: nothing of it is kept
			body = []any{uint64(2), uint64(1), make([]byte, 24), uint64(2), make([]byte, 52), uint32(unix.S_IFREG | 0o644), uint32(1), make([]byte, 20)}
		case fuseOpen: // struct fuse_open_out
			body = []any{uint64(1), uint64(0)}
		case fuseForget:
			continue
		default:
			return
		}
		var out bytes.Buffer
		for _, v := range body {
			binary.Write(&out, binary.NativeEndian, v)
		}
		var head bytes.Buffer
		binary.Write(&head, binary.NativeEndian, []uint32{uint32(16 + out.Len()), 0})
		binary.Write(&head, binary.NativeEndian, unique)
		if _, err := unix.Write(server, append(head.Bytes(), out.Bytes()...)); err != nil || opcode == fuseOpen {
			return
		}
	}
}

// contextOver returns a context that is over.
func contextOver(t *testing.T) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx, cancel
}
