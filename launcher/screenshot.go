package launcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/link"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
)

const (
	// maxScreenshot, in bytes: a screen of 4K that cannot be compressed has 25 MiB.
	maxScreenshot = 32 << 20
	// wakeTime is what a guest's desktop gets to show itself after the pointer moved.
	wakeTime = 500 * time.Millisecond
	// screenshotPatience is how long a picture may lie unread.
	screenshotPatience = 30 * time.Second
)

// shows says why there is no screen to be looked at.
func (l *launcher) shows() error {
	if l.qmp == nil || l.life.HasEnded() || l.start.Machine.Graphics == nil {
		return fmt.Errorf("there is no graphics card to show: the VM is %s", l.life.Shown())
	}
	return nil
}

// handOutScreenshot answers with a socket that a PNG of the screen can be read
// from, to its end. There is one at a time.
func (l *launcher) handOutScreenshot(ctx context.Context, m *link.Command) {
	err := l.shows()
	if err == nil && !l.busy.begin(m.Execute, 1) {
		err = errors.New("a screenshot is being taken already")
	}
	if err != nil {
		m.Answer(nil, err)
		return
	}
	client := l.qmp
	var picture *os.File
	l.later(ctx, func() (err error) {
		picture, err = screenshot(ctx, client)
		return err
	}, func(err error) {
		if err != nil {
			l.busy.end(m.Execute)
			m.Answer(nil, fmt.Errorf("take a screenshot: %w", err))
			return
		}
		ours, theirs, err := socketPair("screenshot")
		if err != nil {
			picture.Close()
			l.busy.end(m.Execute)
			m.Answer(nil, err)
			return
		}
		m.Answer(nil, nil, theirs)
		l.later(ctx, func() error {
			defer picture.Close()
			// Who does not read it to its end sees that, by the end that is missing.
			if ours.SetWriteDeadline(time.Now().Add(screenshotPatience)) == nil {
				_, _ = io.Copy(ours, picture)
			}
			return nil
		}, func(error) {
			l.busy.end(m.Execute)
			ours.Close() // who sees the end may ask for the next
		})
	})
}

// screenshot has QEMU write a picture into a file in memory, which never makes it
// wait, and returns the file at its beginning.
func screenshot(ctx context.Context, client *qmp.Client) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, operateTimeout)
	defer cancel()
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
	// QEMU looks for one that is open for writing only.
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

// movePointer moves the pointer there and back, which ends screen savers, and
// answers when the guest had time to draw.
func (l *launcher) movePointer(ctx context.Context, m *link.Command) {
	if err := l.shows(); err != nil {
		m.Answer(nil, err)
		return
	}
	client := l.qmp
	l.later(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, operateTimeout)
		defer cancel()
		for _, by := range []int{1, -1} {
			if err := client.MovePointer(ctx, by); err != nil {
				return err
			}
		}
		drawn := time.NewTimer(wakeTime)
		defer drawn.Stop()
		select {
		case <-drawn.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}, func(err error) {
		if err != nil {
			err = fmt.Errorf("move the pointer: %w", err)
		}
		m.Answer(nil, err)
	})
}
