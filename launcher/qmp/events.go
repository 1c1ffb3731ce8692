package qmp

import (
	"context"
	"slices"
	"sync"

	monitor "github.com/digitalocean/go-qemu/qmp"
)

// maxEvents bounds the events that wait for a reader.
const maxEvents = 1024

// eventQueue keeps events in order until they are read. It never blocks the
// writer: when it is full, the oldest event that is not SHUTDOWN goes. So what
// is left is the newest, and why the guest ended is never lost.
type eventQueue struct {
	mu      sync.Mutex
	events  []monitor.Event
	dropped int
	ended   bool
	read    bool          // there is a reader
	changed chan struct{} // capacity 1: something is new for the reader
}

func newEventQueue() *eventQueue { return &eventQueue{changed: make(chan struct{}, 1)} }

// add returns how many events were dropped up to now if it dropped one, else 0.
func (q *eventQueue) add(e monitor.Event) (dropped int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) >= maxEvents {
		victim := slices.IndexFunc(q.events, func(e monitor.Event) bool { return e.Event != eventShutdown })
		q.events = slices.Delete(q.events, max(victim, 0), max(victim, 0)+1)
		q.dropped++
		dropped = q.dropped
	}
	q.events = append(q.events, e)
	q.signal()
	return dropped
}

// end says that no more events come.
func (q *eventQueue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	q.signal()
}

func (q *eventQueue) signal() {
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

// take returns the oldest event.
func (q *eventQueue) take() (e monitor.Event, ok, ended bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) == 0 {
		return e, false, q.ended
	}
	e = q.events[0]
	q.events = slices.Delete(q.events, 0, 1)
	return e, true, false
}

// putBack undoes take.
func (q *eventQueue) putBack(e monitor.Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.events = slices.Insert(q.events, 0, e)
}

func (q *eventQueue) subscribe() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.read {
		return false
	}
	q.read = true
	q.signal()
	return true
}

func (q *eventQueue) unsubscribe() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.read = false
}

// pump moves events to out until the queue has ended and is empty, or ctx or
// stop ends. What was not received stays in the queue.
func (q *eventQueue) pump(ctx context.Context, stop <-chan struct{}, out chan<- monitor.Event) {
	defer close(out)
	defer q.unsubscribe()
	for {
		e, ok, ended := q.take()
		switch {
		case ok:
			select {
			case out <- e:
				continue
			case <-ctx.Done():
			case <-stop:
			}
			q.putBack(e)
			return
		case ended:
			return
		}
		select {
		case <-q.changed:
		case <-ctx.Done():
			return
		case <-stop:
			return
		}
	}
}
