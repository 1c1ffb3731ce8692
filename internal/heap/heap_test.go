package heap

import (
	"runtime"
	"runtime/metrics"
	"testing"
	"time"
)

func TestPace(t *testing.T) {
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

// TestKeeper: collections raise GOGC, and Close puts it back.
func TestKeeper(t *testing.T) {
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
	for deadline := time.Now().Add(time.Minute); percent() != busyPercent; {
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
