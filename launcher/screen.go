package launcher

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/link"
	"github.com/kubeqemu/kubeqemu/launcher/process"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
)

const (
	// maxScreenshot is in bytes: a 4K screen that cannot be compressed has 25 MiB.
	maxScreenshot = 32 << 20
	// wakeTime is how long a guest's desktop has to draw itself after the pointer moved.
	wakeTime = 500 * time.Millisecond
	// screenshotPatience is how long a picture may stay unread.
	screenshotPatience = 30 * time.Second
)

// hasScreen returns why there is no screen to show now, or nil.
func (l *launcher) hasScreen(string) error {
	if l.qmp == nil || l.life.HasEnded() || l.start.Machine.Graphics == nil {
		return fmt.Errorf("there is no graphics card to show: the VM is %s", l.life.Shown())
	}
	return nil
}

// dialVNC answers with a connection to QEMU's VNC server.
func (l *launcher) dialVNC(*link.Command) (work, error) {
	socket := l.VNCSocket
	return func(ctx context.Context) (answer, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err != nil {
			return answer{}, fmt.Errorf("connect to the VNC server: %w", err)
		}
		defer conn.Close()
		file, err := conn.(*net.UnixConn).File()
		return answer{file: file}, err
	}, nil
}

// takeScreenshot answers with a socket. Its reader gets a PNG of the screen, then the end of
// the stream.
func (l *launcher) takeScreenshot(*link.Command) (work, error) {
	client := l.qmp
	return func(ctx context.Context) (answer, error) {
		picture, err := screenshot(ctx, client)
		if err != nil {
			return answer{}, fmt.Errorf("take a screenshot: %w", err)
		}
		ours, theirs, err := process.SocketPair("screenshot")
		if err != nil {
			picture.Close()
			return answer{}, err
		}
		feed := func() {
			defer picture.Close()
			// A reader that is too slow gets a PNG without its end, and so notices that it is
			// cut off.
			if ours.SetWriteDeadline(time.Now().Add(screenshotPatience)) == nil {
				_, _ = io.Copy(ours, picture)
			}
		}
		// The socket ends only when the queue has room: its reader may ask for the next
		// picture at once.
		return answer{file: theirs, feed: feed, done: func() { ours.Close() }}, nil
	}, nil
}

// screenshot makes QEMU write a picture into a memfd, on which QEMU never has to wait, and
// returns the file, to be read from its beginning.
func screenshot(ctx context.Context, client *qmp.Client) (*os.File, error) {
	fd, err := unix.MemfdCreate("screenshot", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), "screenshot")
	if err := screendump(ctx, client, file); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

func screendump(ctx context.Context, client *qmp.Client, file *os.File) error {
	// QEMU accepts only a descriptor that is open for writing only.
	output, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer output.Close()
	if err := client.Screendump(ctx, output); err != nil {
		return err
	}
	info, err := file.Stat()
	if err == nil && info.Size() > maxScreenshot {
		err = fmt.Errorf("it has %d bytes, at most %d are handed out", info.Size(), maxScreenshot)
	}
	return err
}

// movePointer moves the pointer by one step and back, which ends screen savers. It answers
// when the guest had time to draw.
func (l *launcher) movePointer(*link.Command) (work, error) {
	client := l.qmp
	return outcome(func(ctx context.Context) error {
		for _, by := range []int{1, -1} {
			if err := client.MovePointer(ctx, by); err != nil {
				return fmt.Errorf("move the pointer: %w", err)
			}
		}
		drawn := time.NewTimer(wakeTime)
		defer drawn.Stop()
		select {
		case <-drawn.C:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("move the pointer: %w", ctx.Err())
		}
	}), nil
}
