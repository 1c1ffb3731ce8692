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
	// closePatience is how long a close may take until it is interrupted, again and again.
	closePatience = 250 * time.Millisecond
	// maxClosing is how many files of a launcher may wait to be closed before its
	// connection ends.
	maxClosing = 8
)

// Closer closes what one launcher has sent, and its connections, in which there may
// be files that nobody has taken out: close(2) takes as long as the file's driver
// likes. A TCP socket lingers (SO_LINGER in socket(7)); FUSE asks its server. So
// they are closed one after the other, on one thread, which all the launcher's
// connections share and which ends with the work. A launcher costs one thread at most,
// however many files it sends. The zero value is ready.
type Closer struct {
	mu      sync.Mutex
	waiting []io.Closer
	closing bool // one that is not in waiting any more
}

// Close leaves something to be closed. It returns at once.
func (c *Closer) Close(what ...io.Closer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, what...)
	if len(c.waiting) > 0 && !c.closing {
		c.closing = true
		go c.run()
	}
}

// Idle says whether all is closed.
func (c *Closer) Idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.closing
}

// Full says whether no more of the launcher is to be taken.
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

// CloseInterrupted closes something in which a launcher may have put files, and sends
// its own thread a signal while that takes long. A TCP socket that lingers gives up then
// (sk_stream_wait_close in net/core/stream.c). FUSE does not.
func CloseInterrupted(what io.Closer) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stop := interrupt(unix.Gettid(), closePatience)
	defer stop()
	_ = what.Close() // whatever it says, it is closed
}

// interrupt sends a thread SIGURG, which Go's own scheduler uses and takes for
// nothing, until it is stopped.
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
