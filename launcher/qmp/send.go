package qmp

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"
)

// maxFiles is how many descriptors QEMU takes from one message
// (TCP_MAX_FDS in chardev/char-socket.c); it loses the others.
const maxFiles = 16

// send writes one command, with files on its first byte. A command that was
// written in part ends the connection: nothing could follow it.
func (c *Client) send(ctx context.Context, line []byte, files []*os.File) error {
	if len(files) > maxFiles {
		return fmt.Errorf("%d files, QEMU takes %d with a command", len(files), maxFiles)
	}
	select {
	case <-c.done:
		return c.Err()
	default:
	}
	select {
	case c.writing <- struct{}{}:
		defer func() { <-c.writing }()
	case <-ctx.Done():
		return ended(ctx)
	case <-c.done:
		return c.Err()
	}
	// The deadline of the command before this one is over.
	c.conn.SetWriteDeadline(time.Time{})
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(cut)
		c.conn.SetWriteDeadline(time.Unix(1, 0))
	})
	n, tried := 0, false
	err := withFDs(files, nil, func(fds []int) (err error) {
		tried = true
		n, err = c.write(line, fds)
		return err
	})
	if !stop() {
		<-cut
	}
	if err == nil || !tried {
		return err // not tried: a file was closed, and nothing was written
	}
	if ctx.Err() != nil {
		if n > 0 {
			c.fail(fmt.Errorf("write command: %w", ended(ctx)))
		}
		return ended(ctx)
	}
	c.fail(fmt.Errorf("write command: %w", err))
	return c.Err()
}

// write returns how much of line went out.
func (c *Client) write(line []byte, fds []int) (int, error) {
	n := 0
	if len(fds) > 0 {
		var err error
		// One sendmsg, which may be short.
		if n, _, err = c.conn.WriteMsgUnix(line, syscall.UnixRights(fds...), nil); err != nil {
			return n, err
		}
	}
	rest, err := c.conn.Write(line[n:])
	return n + rest, err
}

// withFDs calls do with the descriptors of files, which stay open meanwhile. File.Fd would
// make the files blocking, also for other processes that share them.
func withFDs(files []*os.File, fds []int, do func([]int) error) error {
	if len(files) == 0 {
		return do(fds)
	}
	raw, err := files[0].SyscallConn()
	if err != nil {
		return fmt.Errorf("pass file %q: %w", files[0].Name(), err)
	}
	var inner error
	// Control fails for a closed file only, with an error that os does not export.
	if raw.Control(func(fd uintptr) { inner = withFDs(files[1:], append(fds, int(fd)), do) }) != nil {
		return fmt.Errorf("pass file %q: %w", files[0].Name(), os.ErrClosed)
	}
	return inner
}
