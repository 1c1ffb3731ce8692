package intake

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Budget is an amount of connections, bytes or calls that many share. Each hold has a key: an
// address, a namespace, a user. No key can keep another key from the budget. When the budget is
// used up, the key that holds most gives way to a key that holds less. Of the keys that wait,
// the one that will hold least is next.
type Budget struct {
	// Size is the whole amount.
	Size int64
	// Share is the most that one key may hold; 0 is no limit of its own.
	Share int64
	// Renews prefers new holds: among keys that hold the same, the oldest hold gives way;
	// within a key, the largest and oldest gives way to the newest.
	Renews bool

	mu sync.Mutex
	// used is held in all, held by each key. usedLeaving and leaving are the parts of it that
	// were asked to give way, and have not done so.
	used, usedLeaving int64
	held, leaving     map[string]int64
	holds             map[*Hold]struct{}
	waiting           map[*waiter]struct{}
	order             uint64
}

// Hold is a part of a budget, taken until Release.
type Hold struct {
	budget  *Budget
	key     string
	weight  int64
	order   uint64
	giveWay func()
	asked   bool
}

// waiter waits for more weight for its hold.
type waiter struct {
	hold   *Hold
	weight int64
	order  uint64
	ready  chan struct{}
}

// ErrFull says that a budget is used up by keys that hold no more than the one
// that asks.
var ErrFull = errors.New("there is no room, and nobody holds more")

// ShareError says that a key holds all that one key may.
type ShareError struct {
	Key   string
	Share int64
}

func (e *ShareError) Error() string {
	return fmt.Sprintf("%s holds all of the %d that one may", e.Key, e.Share)
}

// Take takes a weight of the budget, and waits for it until ctx ends. giveWay is called once,
// from any goroutine, if another key needs the room: the holder must release soon. A hold with
// a nil giveWay never gives way.
func (b *Budget) Take(ctx context.Context, key string, weight int64, giveWay func()) (*Hold, error) {
	h := &Hold{budget: b, key: key, giveWay: giveWay}
	if err := b.take(ctx, h, weight); err != nil {
		return nil, err
	}
	return h, nil
}

// Grow takes more for a hold.
func (h *Hold) Grow(ctx context.Context, weight int64) error { return h.budget.take(ctx, h, weight) }

func (b *Budget) take(ctx context.Context, h *Hold, weight int64) error {
	w := &waiter{hold: h, weight: weight, ready: make(chan struct{})}
	b.mu.Lock()
	if b.holds == nil {
		b.held, b.leaving = map[string]int64{}, map[string]int64{}
		b.holds, b.waiting = map[*Hold]struct{}{}, map[*waiter]struct{}{}
	}
	if b.Share > 0 && b.held[h.key]+b.wanted(h.key)+weight > b.Share {
		b.mu.Unlock()
		return &ShareError{h.key, b.Share}
	}
	b.order++
	w.order = b.order
	b.waiting[w] = struct{}{}
	asked := b.settle()
	b.mu.Unlock()
	askAll(asked)
	select {
	case <-w.ready:
		return nil
	default:
	}
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, still := b.waiting[w]; !still {
		return nil // it was given at the last moment
	}
	delete(b.waiting, w)
	return ErrFull
}

// wanted is the weight for which a key's waiters wait.
func (b *Budget) wanted(key string) (all int64) {
	for w := range b.waiting {
		if w.hold.key == key {
			all += w.weight
		}
	}
	return all
}

// askAll asks holders to give way, without a lock: they may release at once.
func askAll(holds []*Hold) {
	for _, h := range holds {
		h.giveWay()
	}
}

// settle gives room to those that wait, the key that holds least first, and
// returns the holds that are to give way for the next one.
func (b *Budget) settle() []*Hold {
	for {
		next := b.next()
		if next == nil {
			return nil
		}
		if b.used+next.weight > b.Size {
			return b.makeRoom(next)
		}
		delete(b.waiting, next)
		b.give(next)
		close(next.ready)
	}
}

func (b *Budget) give(w *waiter) {
	h := w.hold
	if h.weight == 0 {
		b.order++
		h.order = b.order
		b.holds[h] = struct{}{}
	}
	h.weight += w.weight
	b.used += w.weight
	b.held[h.key] += w.weight
	if h.asked {
		b.usedLeaving += w.weight
		b.leaving[h.key] += w.weight
	}
}

func (b *Budget) next() *waiter {
	var first *waiter
	for w := range b.waiting {
		if first == nil {
			first = w
			continue
		}
		if x, y := b.with(w), b.with(first); x < y || x == y && w.order < first.order {
			first = w
		}
	}
	return first
}

// stays is what a key holds, without the holds that were asked to give way.
func (b *Budget) stays(key string) int64 { return b.held[key] - b.leaving[key] }

// with is what a waiter's key will hold.
func (b *Budget) with(w *waiter) int64 { return b.stays(w.hold.key) + w.weight }

// makeRoom chooses holds to give way for a waiter, unless enough are leaving. If they would not
// suffice, it chooses none.
func (b *Budget) makeRoom(w *waiter) (asked []*Hold) {
	for b.used-b.usedLeaving+w.weight > b.Size {
		h := b.victim(w)
		if h == nil {
			for _, h := range asked {
				b.leave(h, false)
			}
			return nil
		}
		b.leave(h, true)
		asked = append(asked, h)
	}
	return asked
}

func (b *Budget) leave(h *Hold, asked bool) {
	h.asked = asked
	if asked {
		b.usedLeaving += h.weight
		b.leaving[h.key] += h.weight
	} else {
		b.usedLeaving -= h.weight
		subtract(b.leaving, h.key, h.weight)
	}
}

// victim is the hold that gives way to a waiter: of the key that holds most, the
// largest, and of these the oldest.
func (b *Budget) victim(w *waiter) *Hold {
	own := b.Renews
	for key := range b.held {
		own = own && b.stays(key) <= b.stays(w.hold.key)
	}
	var found *Hold
	for h := range b.holds {
		gives := b.stays(h.key) > b.with(w) || b.Renews && b.stays(h.key) == b.with(w)
		if h.key == w.hold.key {
			gives = own && h != w.hold
		}
		if gives && h.giveWay != nil && !h.asked && (found == nil || b.before(h, found)) {
			found = h
		}
	}
	return found
}

func (b *Budget) before(a, c *Hold) bool {
	if x, y := b.stays(a.key), b.stays(c.key); x != y {
		return x > y
	}
	if a.weight != c.weight {
		return a.weight > c.weight
	}
	return a.order < c.order
}

// Touch makes a hold the newest of its key.
func (h *Hold) Touch() {
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	h.budget.order++
	h.order = h.budget.order
}

// Keep makes a hold give way no more. It returns false if the hold was asked to give way
// already.
func (h *Hold) Keep() bool {
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	if h.asked {
		return false
	}
	h.giveWay = nil
	return true
}

// Release gives back all that was taken. It may be called more than once.
func (h *Hold) Release() {
	b := h.budget
	b.mu.Lock()
	if _, there := b.holds[h]; !there {
		b.mu.Unlock()
		return
	}
	delete(b.holds, h)
	b.used -= h.weight
	subtract(b.held, h.key, h.weight)
	if h.asked {
		b.leave(h, false)
	}
	asked := b.settle()
	b.mu.Unlock()
	askAll(asked)
}

func subtract(from map[string]int64, key string, weight int64) {
	if from[key] -= weight; from[key] == 0 {
		delete(from, key)
	}
}

// Used is how much is held, by all.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}
