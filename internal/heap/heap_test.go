package heap

import (
	"fmt"
	"runtime"
	"runtime/metrics"
	"sync"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

func TestFrequentCollectionsMeanBusy(t *testing.T) {
	start := time.Unix(1000, 0)
	// every returns collections that are so far from each other.
	every := func(d time.Duration, count int) (cycles []time.Duration) {
		for i := range count {
			cycles = append(cycles, time.Duration(i)*d)
		}
		return cycles
	}
	tests := []struct {
		name   string
		cycles []time.Duration // since start
		look   time.Duration
		busy   bool // after the cycles
		calm   bool // after the look
	}{
		{"none", nil, 0, false, false},
		{"a few at once", every(0, busyCycles-1), 0, false, false},
		{"many at once", every(0, busyCycles), 0, true, false},
		{"many within the window", every(busyWindow/busyCycles, busyCycles), busyWindow, true, false},
		{"as many, slower", every(busyWindow/busyCycles*2, 3*busyCycles), time.Minute, false, false},
		{"quiet since", every(0, busyCycles), calmAfter, true, true},
		{"one more since", append(every(0, busyCycles), calmAfter-1), calmAfter, true, true},
		{"two more since", append(every(0, busyCycles), calmAfter-2, calmAfter-1), calmAfter, true, false},
	}
	for _, tt := range tests {
		var p pace
		became := 0
		for _, at := range tt.cycles {
			if p.cycle(start.Add(at)) {
				became++
			}
		}
		if p.busy != tt.busy || became > 1 || (became == 1) != tt.busy {
			t.Errorf("%s: busy %v, became so %d times; want %v", tt.name, p.busy, became, tt.busy)
		}
		if got := p.look(start.Add(tt.look)); got != tt.calm || p.busy != (tt.busy && !tt.calm) {
			t.Errorf("%s: calm %v, busy then %v; want calm %v", tt.name, got, p.busy, tt.calm)
		}
	}
}

func TestBusyPercent(t *testing.T) {
	for live, want := range map[uint64]int{0: mostPercent, 1 << 20: mostPercent, busyGrowth: 100, 2 * busyGrowth: leastPercent, 100 * busyGrowth: leastPercent} {
		if got := busyPercent(live); got != want {
			t.Errorf("of %d bytes: %d percent, want %d", live, got, want)
		}
	}
}

// TestKeeperRaisesGOGCAndPutsItBack: collections raise GOGC, and Close puts it back.
func TestKeeperRaisesGOGCAndPutsItBack(t *testing.T) {
	percent := func() uint64 {
		sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	before := percent()
	k := Keep()
	defer k.Close()
	if got := percent(); got != idlePercent {
		t.Errorf("idle: %d percent", got)
	}
	for deadline := time.Now().Add(testkit.Patience); percent() != mostPercent; {
		if time.Now().After(deadline) {
			t.Fatalf("many collections, and still %d percent", percent())
		}
		runtime.GC()
	}
	k.Close()
	k.Close()
	runtime.GC()
	if got := percent(); got != before {
		t.Errorf("closed: %d percent, before %d", got, before)
	}
}

// deepen needs a stack of more than 16 KiB for a depth of 100.
func deepen(depth int) int {
	var space [256]byte
	if depth == 0 {
		return len(space)
	}
	return deepen(depth-1) + int(space[depth])
}

// TestStacksAreGivenBackAfterTheWork: when the work is over, goroutines give back the stacks that the work needed, and
// the collections for that do not count as work.
func TestStacksAreGivenBackAfterTheWork(t *testing.T) {
	k := Keep()
	defer k.Close()
	const goroutines = 200
	stacks := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.StackInuse
	}
	others := stacks() // of this program's other goroutines: 350 KiB with -race
	var deep, end sync.WaitGroup
	rest := make(chan struct{})
	defer end.Wait()
	defer close(rest)
	for range goroutines {
		deep.Add(1)
		end.Go(func() {
			deepen(100)
			deep.Done()
			<-rest
		})
	}
	deep.Wait()
	if got := stacks() - others; got < goroutines*(16<<10) {
		t.Fatalf("%d goroutines, and stacks of only %d KiB", goroutines, got>>10)
	}
	k.mu.Lock()
	k.pace.busy = true
	k.after(0, k.calm)
	k.mu.Unlock()
	testkit.Eventually(t, "the stacks' return", func() error {
		if got := stacks(); got > others+goroutines*(6<<10) {
			return fmt.Errorf("%d goroutines, and stacks of %d KiB, %d KiB of them others'", goroutines, got>>10, others>>10)
		}
		return nil
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pace.busy {
		t.Error("the program counts as busy")
	}
}
