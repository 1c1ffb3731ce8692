package control

import (
	"io"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// closePatience is how long a close may take before it is interrupted, and the time
	// between further interruptions.
	closePatience = 250 * time.Millisecond
	// maxClosing is how many files of a launcher may wait to be closed before its
	// connection ends.
	maxClosing = 8
)

// Closer closes the files that one launcher has sent, and the launcher's connections, which
// may hold files that nobody has received. close(2) takes as long as the file's driver likes:
// a TCP socket lingers (SO_LINGER in socket(7)); FUSE asks its server. So all of them are
// closed one after the other, on one thread, which ends when nothing is left. A launcher costs
// one thread at most, however many files it sends. The zero value is ready.
type Closer struct {
	mu      sync.Mutex
	waiting []io.Closer
	closing bool // run is at work; what it closes is no longer in waiting
}

// Close queues files and connections to be closed. It returns at once.
func (c *Closer) Close(what ...io.Closer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, what...)
	if len(c.waiting) > 0 && !c.closing {
		c.closing = true
		go c.run()
	}
}

// Idle reports whether everything is closed.
func (c *Closer) Idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.closing
}

// Full reports whether so much waits to be closed that the launcher's connection must end.
func (c *Closer) Full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting) >= maxClosing
}

func (c *Closer) run() {
	for next := c.next(); next != nil; next = c.next() {
		CloseInterrupted(next)
	}
}

func (c *Closer) next() io.Closer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 0 {
		c.waiting, c.closing = nil, false
		return nil
	}
	next := c.waiting[0]
	c.waiting = c.waiting[1:]
	return next
}

// CloseInterrupted closes something that may hold a launcher's files. While that takes long it
// sends its own thread a signal, again and again. A TCP socket that lingers gives up then
// (sk_stream_wait_close in net/core/stream.c). FUSE does not.
func CloseInterrupted(what io.Closer) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stop := interrupt(unix.Gettid(), closePatience)
	defer stop()
	_ = what.Close() // it is closed even after an error
}

// interrupt sends a thread SIGURG at each interval, until stop is called. Go's scheduler uses
// SIGURG itself, and ignores one that it did not send.
func interrupt(thread int, interval time.Duration) (stop func()) {
	var mu sync.Mutex
	var timer *time.Timer
	stopped := false
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(interval, func() {
		mu.Lock()
		defer mu.Unlock()
		if stopped { // the thread may be another's by now
			return
		}
		_ = unix.Tgkill(os.Getpid(), thread, unix.SIGURG)
		timer.Reset(interval)
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		timer.Stop()
	}
}
