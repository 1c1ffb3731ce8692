// Package heap keeps a program's heap small while the program has little to do, and lets
// the heap grow while the program has much to do. A program is taken to have little to do
// until it has collected often.
//
// Go collects garbage whenever the heap has grown by so many percent of what was in use
// (GOGC). A component of Kubeqemu uses 5 MiB. With a low percentage it stays that
// small, and collects garbage for each MiB that it allocates: in a burst of starts a
// third of its CPU time went there.
package heap

import (
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// idlePercent is GOGC of a program that has little to do.
	idlePercent = 25
	// busyPercent is GOGC of a program that has much to do. With 100 the control plane of 100
	// VMs is 3 MiB smaller, and a burst of starts takes longer.
	busyPercent = 200
	// busyCycles collections within busyWindow make a program busy. A scrape of the
	// metrics takes fewer.
	busyCycles = 4
	busyWindow = time.Second
	// A busy program becomes idle when it has collected at most once within calmAfter. The
	// Keeper looks at that interval, too.
	calmAfter = 5 * time.Second
)

// pace tells by the times of garbage collections whether a program is busy.
type pace struct {
	cycles [busyCycles]time.Time // of the last collections; a ring
	next   int
	busy   bool
}

// cycle notes a collection, and says whether the program has become busy by it.
func (p *pace) cycle(now time.Time) (became bool) {
	p.cycles[p.next] = now
	p.next = (p.next + 1) % busyCycles
	oldest := p.cycles[p.next]
	if p.busy || oldest.IsZero() || now.Sub(oldest) > busyWindow {
		return false
	}
	p.busy = true
	return true
}

// look says whether a program that was busy has become idle.
func (p *pace) look(now time.Time) (became bool) {
	lastButOne := p.cycles[(p.next+busyCycles-2)%busyCycles]
	if !p.busy || now.Sub(lastButOne) < calmAfter {
		return false
	}
	// The cycles until now are not counted again.
	*p = pace{}
	return true
}

// Keeper sets this process's GOGC until it is closed. GOMEMLIMIT counts besides.
type Keeper struct {
	mu     sync.Mutex
	pace   pace
	look   *time.Timer
	closed bool
	before int
}

// mark is unreachable from the beginning, so that each collection finds one.
type mark struct{ _ *byte }

// Keep returns a Keeper that works. A process has one at most.
func Keep() *Keeper {
	k := &Keeper{before: debug.SetGCPercent(idlePercent)}
	k.arm()
	return k
}

// arm has the next collection call cycle.
func (k *Keeper) arm() { runtime.AddCleanup(&mark{}, (*Keeper).cycle, k) }

func (k *Keeper) cycle() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return
	}
	if k.pace.cycle(time.Now()) {
		debug.SetGCPercent(busyPercent)
		k.look = time.AfterFunc(calmAfter, k.calm)
	}
	k.arm()
}

func (k *Keeper) calm() {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.closed:
	case k.pace.look(time.Now()):
		debug.SetGCPercent(idlePercent)
		// The node gets the memory back that the work took. Go would keep that memory
		// until the next collection, which may be minutes away.
		go debug.FreeOSMemory() // it collects, and calls cycle
	default:
		k.look.Reset(calmAfter)
	}
}

// Close sets GOGC to what it was before.
func (k *Keeper) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return
	}
	k.closed = true
	if k.look != nil {
		k.look.Stop()
	}
	debug.SetGCPercent(k.before)
}
