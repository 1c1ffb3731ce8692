package qmp

import (
	"context"
	"slices"
	"sync"

	monitor "github.com/digitalocean/go-qemu/qmp"
)

// Bounds of the events that wait for a reader: their number, and their length
// in bytes as QEMU wrote them.
const (
	maxEvents      = 1024
	maxEventsBytes = 1 << 20
)

// queued is an event that waits.
type queued struct {
	monitor.Event
	bytes int
}

// eventQueue keeps events in order until they are read. It never blocks the writer: a full
// queue drops the oldest event that is not SHUTDOWN. So the newest events stay, and the reason
// why the guest ended is never lost.
type eventQueue struct {
	mu      sync.Mutex
	events  []queued
	bytes   int
	added   int
	dropped int
	ended   bool
	read    bool          // there is a reader
	changed chan struct{} // capacity 1: something is new for the reader
}

func newEventQueue() *eventQueue { return &eventQueue{changed: make(chan struct{}, 1)} }

// add adds an event; bytes is its length as QEMU wrote it. If add dropped an event, it returns
// how many were dropped up to now, else 0.
func (q *eventQueue) add(e monitor.Event, bytes int) (dropped int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.events) > 0 && (len(q.events) >= maxEvents || q.bytes+bytes > maxEventsBytes) {
		victim := slices.IndexFunc(q.events, func(e queued) bool { return e.Event.Event != eventShutdown })
		q.remove(max(victim, 0))
		q.dropped++
		dropped = q.dropped
	}
	q.events = append(q.events, queued{e, bytes})
	q.bytes += bytes
	q.added++
	q.signal()
	return dropped
}

func (q *eventQueue) remove(i int) {
	q.bytes -= q.events[i].bytes
	q.events = slices.Delete(q.events, i, i+1)
}

// end notes that no more events come.
func (q *eventQueue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	q.signal()
}

// counts returns how many events were added up to now, and how many of them were dropped.
func (q *eventQueue) counts() (added, dropped int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.added, q.dropped
}

func (q *eventQueue) signal() {
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

// take returns the oldest event.
func (q *eventQueue) take() (e queued, ok, ended bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) == 0 {
		return e, false, q.ended
	}
	e = q.events[0]
	q.remove(0)
	return e, true, false
}

// putBack undoes take.
func (q *eventQueue) putBack(e queued) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.events = slices.Insert(q.events, 0, e)
	q.bytes += e.bytes
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
			case out <- e.Event:
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
