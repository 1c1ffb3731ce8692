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
	"runtime/metrics"
	"sync"
	"time"
)

const (
	// idlePercent is GOGC of a program that has little to do.
	idlePercent = 25
	// busyGrowth, in bytes, is how much a program that has much to do allocates between two
	// collections; leastPercent and mostPercent bound its GOGC. Of what was allocated meanwhile,
	// the part that stays in use lies scattered over all of it, and Go keeps all of it. With a
	// growth of 12 MiB the control plane of 100 VMs is 3 MiB larger; with 4 MiB a burst of
	// starts takes longer.
	busyGrowth   = 6 << 20
	leastPercent = 75 // of a program that uses much: marking it takes long
	mostPercent  = 200
	// busyCycles collections within busyWindow make a program busy. A scrape of the
	// metrics takes fewer.
	busyCycles = 4
	busyWindow = time.Second
	// A busy program becomes idle when it has collected at most once within calmAfter. The
	// Keeper looks at that interval, too.
	calmAfter = 5 * time.Second
	// A program that has become idle collects settleCollections times. A collection halves the
	// stack of a goroutine that uses less than a quarter of it. virt-handler has 600
	// goroutines with 100 VMs. The collections are settleInterval apart, so that they do not
	// make the program busy.
	settleCollections = 3
	settleInterval    = busyWindow
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
	next   *time.Timer // calls calm or settle
	closed bool
	before int
	// percent is the process's GOGC.
	percent int
}

// mark is unreachable from the beginning, so that each collection finds one.
type mark struct{ _ *byte }

// Keep returns a Keeper that works. A process has one at most.
func Keep() *Keeper {
	k := &Keeper{before: debug.SetGCPercent(idlePercent), percent: idlePercent}
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
		k.after(calmAfter, k.calm)
	}
	if k.pace.busy {
		k.set(busyPercent(live()))
	}
	k.arm()
}

// live is how much of the heap was in use at the last collection, in bytes.
func live() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// busyPercent is GOGC of a program that has much to do and uses so much of the heap.
func busyPercent(live uint64) int {
	return int(min(max(busyGrowth*100/max(live, 1), leastPercent), mostPercent))
}

// set sets GOGC. That stops the program for a moment, so a small change is left out.
func (k *Keeper) set(percent int) {
	if difference := percent - k.percent; max(difference, -difference) >= idlePercent {
		debug.SetGCPercent(percent)
		k.percent = percent
	}
}

// after calls a function later, in place of what was to be called.
func (k *Keeper) after(wait time.Duration, call func()) {
	if k.next != nil {
		k.next.Stop()
	}
	k.next = time.AfterFunc(wait, call)
}

func (k *Keeper) calm() {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.closed:
	case k.pace.look(time.Now()):
		debug.SetGCPercent(idlePercent)
		k.percent = idlePercent
		k.after(0, k.settle(settleCollections))
	default:
		k.after(calmAfter, k.calm)
	}
}

// settle returns a function that collects so many times. The node gets the memory back that
// the work took. Go would keep that memory until the next collection, which may be minutes away.
func (k *Keeper) settle(collections int) func() {
	return func() {
		k.mu.Lock()
		if k.closed || k.pace.busy {
			k.mu.Unlock()
			return
		}
		if collections > 1 {
			k.after(settleInterval, k.settle(collections-1))
		}
		k.mu.Unlock()
		debug.FreeOSMemory() // it collects, and so calls cycle
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
	if k.next != nil {
		k.next.Stop()
	}
	debug.SetGCPercent(k.before)
}
