package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// infoTimeout bounds how long the size of a disk may be looked for. The image's first block is there
	// already; reading the rest of a header may take as long as the source's patience lets it.
	infoTimeout = 10 * time.Minute
	// maxOutput bounds what is taken of qemu-img's output.
	maxOutput = 1 << 20
	// memory bounds the addresses of qemu-img: its libraries and the stacks of its threads take most of
	// them, and no memory.
	memory    = 1 << 30
	openFiles = 64
)

// Converter runs qemu-img on an image that an NBD server serves.
type Converter struct {
	// QEMUImg is the program.
	QEMUImg string
	Header  Header
	// Socket is the NBD server's.
	Socket string
	// Progress counts something that grows while qemu-img works. If it does not grow for as long as Stuck
	// says, qemu-img is killed.
	Progress func() int64
	Stuck    time.Duration
}

// Size is the size of the disk in the image, as QEMU sees it.
func (c *Converter) Size(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	args, err := infoCommand(c.Header, c.Socket)
	if err != nil {
		return 0, err
	}
	out, err := c.read(ctx, args)
	if err != nil {
		return 0, err
	}
	var info struct {
		Size int64 `json:"virtual-size"`
	}
	if err := json.Unmarshal(out, &info); err != nil {
		return 0, fmt.Errorf("read what qemu-img says of the image: %w", err)
	}
	return info.Size, nil
}

// Data is how many bytes of the disk in the image have data, in whole clusters of 64 KiB.
func (c *Converter) Data(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	args, err := measureCommand(c.Header, c.Socket)
	if err != nil {
		return 0, err
	}
	out, err := c.read(ctx, args)
	if err != nil {
		return 0, err
	}
	var measured struct {
		Required int64 `json:"required"`
		Full     int64 `json:"fully-allocated"`
	}
	if err := json.Unmarshal(out, &measured); err != nil {
		return 0, fmt.Errorf("read what qemu-img says of the image: %w", err)
	}
	// Both have the same tables; Required lacks what has no data.
	const cluster = 64 << 10
	return max(0, (c.Header.Size+cluster-1)/cluster*cluster-(measured.Full-measured.Required)), nil
}

// Convert writes a segment. zeroed: the target has zeros already where the image has them.
func (c *Converter) Convert(ctx context.Context, s Segment, to Target, zeroed bool) error {
	args, err := convertCommand(c.Header, c.Socket, s, to, zeroed)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go c.watch(ctx, cancel)
	_, err = c.run(ctx, args)
	return err
}

// watch ends ctx when qemu-img is stuck.
func (c *Converter) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	last := c.Progress()
	tick := time.NewTicker(c.Stuck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := c.Progress()
		if now == last {
			cancel(fmt.Errorf("qemu-img did nothing for %s", c.Stuck))
			return
		}
		last = now
	}
}

// read is run for commands that only read the image: if one fails by itself, it is the image's fault.
func (c *Converter) read(ctx context.Context, args []string) ([]byte, error) {
	out, err := c.run(ctx, args)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		err = unusable("%w", err)
	}
	return out, err
}

// run runs qemu-img, with bounds, until it ends or ctx does.
func (c *Converter) run(ctx context.Context, args []string) ([]byte, error) {
	// The kernel kills qemu-img when the thread ends that started it: it must not end before.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, c.QEMUImg, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// Nothing of this process's environment, but that memory is in one arena rather than in one of 64 MiB
	// for each thread.
	cmd.Env = []string{"MALLOC_ARENA_MAX=1", "LC_ALL=C"}
	cmd.WaitDelay = 5 * time.Second
	out, errs := &bounded{most: maxOutput}, &bounded{most: 4 << 10}
	cmd.Stdout, cmd.Stderr = out, errs
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start qemu-img: %w", err)
	}
	limits := errors.Join(
		unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_AS, &unix.Rlimit{Cur: memory, Max: memory}, nil),
		unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: openFiles, Max: openFiles}, nil),
		unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_CORE, &unix.Rlimit{}, nil))
	if limits != nil && !errors.Is(limits, unix.ESRCH) {
		cmd.Process.Kill()
		cmd.Wait()
		return nil, fmt.Errorf("bound qemu-img: %w", limits)
	}
	err := cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, fmt.Errorf("qemu-img %s: %w: %s", args[0], err, firstLine(errs.text.Bytes()))
	case out.over:
		return nil, unusable("qemu-img says more than %d bytes of it", maxOutput)
	}
	return out.text.Bytes(), nil
}

// bounded keeps the beginning of what is written.
type bounded struct {
	text bytes.Buffer
	most int
	over bool
}

func (b *bounded) Write(p []byte) (int, error) {
	room := b.most - b.text.Len()
	if len(p) > room {
		b.over = true
	}
	b.text.Write(p[:min(len(p), room)])
	return len(p), nil
}

// firstLine is the beginning of a program's complaint, in printable characters.
func firstLine(text []byte) string {
	const most = 200
	line, _, _ := strings.Cut(string(text[:min(len(text), most)]), "\n")
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '.'
		}
		return r
	}, strings.TrimPrefix(line, "qemu-img: "))
}
