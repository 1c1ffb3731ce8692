package intake

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// now is a context that waits for nothing.
func now() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// TestWhoGivesWayWhenTheBudgetIsUsedUp: who holds when all is used up, and who gives way. Each take is a key
// and a weight; in capitals, it does not give way.
func TestWhoGivesWayWhenTheBudgetIsUsedUp(t *testing.T) {
	type take struct {
		key    string
		weight int64
		kept   bool
	}
	of := func(key string, weights ...int64) (all []take) {
		for _, w := range weights {
			all = append(all, take{key, w, false})
		}
		return all
	}
	for name, c := range map[string]struct {
		share  int64
		renews bool
		before []take
		take   take
		want   string // "yes", "full", "share", or the number of the one that gives way
	}{
		"room":                                        {0, false, of("a", 4, 4), take{key: "b", weight: 2}, "yes"},
		"one has all, and another wants":              {0, false, of("a", 4, 6), take{key: "b", weight: 1}, "1"},
		"the oldest of equals gives way":              {0, false, of("a", 5, 5), take{key: "b", weight: 1}, "0"},
		"nobody gives way to its equal":               {0, false, append(of("a", 5), of("b", 5)...), take{key: "c", weight: 5}, "full"},
		"but to one that is newer, where that counts": {0, true, append(of("a", 5), of("b", 5)...), take{key: "c", weight: 5}, "0"},
		"nor to itself":                               {0, false, of("a", 5, 5), take{key: "a", weight: 1}, "full"},
		"but where the newest counts":                 {0, true, of("a", 5, 5), take{key: "a", weight: 1}, "0"},
		"others that hold more give way first":        {0, true, append(of("b", 6), of("a", 4)...), take{key: "a", weight: 1}, "0"},
		"what is kept stays":                          {0, true, []take{{"a", 6, true}, {"a", 4, false}}, take{key: "b", weight: 1}, "1"},
		"none is asked in vain":                       {0, true, []take{{"a", 6, true}, {"a", 4, false}}, take{key: "b", weight: 5}, "full"},
		"not one's own for what others will keep":     {0, true, []take{{"b", 6, true}, {"a", 4, false}}, take{key: "a", weight: 1}, "full"},
		"a share":         {3, false, of("a", 2), take{key: "a", weight: 2}, "share"},
		"another's share": {3, false, of("a", 3), take{key: "b", weight: 2}, "yes"},
	} {
		b := &Budget{Size: 10, Share: c.share, Renews: c.renews}
		gone := ""
		for i, before := range c.before {
			var h *Hold
			giveWay := func() { gone += fmt.Sprint(i); h.Release() }
			if before.kept {
				giveWay = nil
			}
			var err error
			if h, err = b.Take(now(), before.key, before.weight, giveWay); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		_, err := b.Take(now(), c.take.key, c.take.weight, nil)
		var share *ShareError
		got := "yes"
		switch {
		case errors.As(err, &share):
			got = "share"
		case errors.Is(err, ErrFull):
			got = "full" + gone
		case gone != "":
			got = gone
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestWhoWaitsForABudgetGetsRoom: one that waits gets room when it is given back, the smallest
// first, and nobody waits behind one that does not fit.
func TestWhoWaitsForABudgetGetsRoom(t *testing.T) {
	b := &Budget{Size: 10}
	first, err := b.Take(now(), "a", 6, nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := b.Take(now(), "b", 4, nil)
	if err != nil {
		t.Fatal(err)
	}
	given := make(chan string, 2)
	for i, w := range []struct {
		key    string
		weight int64
	}{{"large", 10}, {"small", 1}} {
		go func() {
			if _, err := b.Take(t.Context(), w.key, w.weight, nil); err == nil {
				given <- w.key
			}
		}()
		testkit.Until(t, "one more that waits", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.waiting) == i+1 })
	}
	first.Release()
	if got := <-given; got != "small" {
		t.Errorf("%s is first", got)
	}
	other.Release()
	select {
	case got := <-given:
		t.Errorf("%s has more than there is", got)
	case <-time.After(20 * time.Millisecond):
	}
}

// TestWaitingCountsForAKeysShareOfABudget: those of a key that wait count for its share.
func TestWaitingCountsForAKeysShareOfABudget(t *testing.T) {
	b := &Budget{Size: 3, Share: 3}
	other, err := b.Take(now(), "b", 3, nil)
	if err != nil {
		t.Fatal(err)
	}
	given := make(chan error, 3)
	for i := range 3 {
		go func() {
			_, err := b.Take(t.Context(), "a", 1, nil)
			given <- err
		}()
		testkit.Until(t, "one more that waits", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.waiting) == i+1 })
	}
	var share *ShareError
	if _, err := b.Take(now(), "a", 1, nil); !errors.As(err, &share) {
		t.Errorf("a fourth waits: %v", err)
	}
	other.Release()
	for range 3 {
		if err := <-given; err != nil {
			t.Error(err)
		}
	}
}

// TestRandomUseStaysWithinTheBudget: whatever is taken, kept and released, never more is held than
// there is, and in the end nothing.
func TestRandomUseStaysWithinTheBudget(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		b := &Budget{Size: 50, Share: 40, Renews: seed%2 == 0}
		held := map[*Hold]bool{}
		for step := range 500 {
			switch random.IntN(5) {
			case 0, 1, 2:
				var h *Hold
				gone := false
				h, err := b.Take(now(), fmt.Sprint(random.IntN(6)), 1+random.Int64N(20), func() { gone = true; delete(held, h); h.Release() })
				if err == nil && !gone {
					held[h] = true
				}
			case 3:
				for h := range held {
					h.Keep()
					break
				}
			case 4:
				for h := range held {
					delete(held, h)
					h.Release()
					h.Release()
					break
				}
			}
			var sum int64
			for h := range held {
				sum += h.weight
			}
			if used := b.Used(); used != sum || used > b.Size {
				t.Fatalf("seed %d, step %d: %d are held, and %d used", seed, step, sum, used)
			}
		}
		for h := range held {
			h.Release()
		}
		if len(b.held)+len(b.leaving)+len(b.holds)+len(b.waiting) > 0 || b.used+b.usedLeaving != 0 {
			t.Fatalf("seed %d: something is left: %+v", seed, b)
		}
	}
}

// TestConcurrentUseStaysWithinTheBudget: many take and wait at once; who is asked gives way, never is
// more held than there is, and nobody waits for what never comes.
func TestConcurrentUseStaysWithinTheBudget(t *testing.T) {
	b := &Budget{Size: 20, Renews: true}
	var all sync.WaitGroup
	var given atomic.Int64
	for i := range uint64(40) {
		all.Go(func() {
			random := rand.New(rand.NewPCG(i, 0))
			for range 50 {
				asked := make(chan struct{})
				patience := testkit.Patience // some wait for as long as it takes on a busy machine
				if random.IntN(4) == 0 {
					patience = time.Millisecond
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				h, err := b.Take(ctx, fmt.Sprint(i%7), 1+random.Int64N(8), func() { close(asked) })
				cancel()
				if err != nil {
					continue
				}
				given.Add(1)
				if used := b.Used(); used > b.Size {
					t.Errorf("%d are used", used)
				}
				if random.IntN(2) == 0 && h.Keep() {
					time.Sleep(time.Millisecond)
				} else {
					select {
					case <-asked:
					case <-time.After(5 * time.Millisecond):
					}
				}
				h.Release()
			}
		})
	}
	all.Wait()
	if used := b.Used(); used != 0 || len(b.waiting)+len(b.holds)+len(b.held)+len(b.leaving) > 0 {
		t.Errorf("in the end %d are used: %+v", used, b)
	}
	if given.Load() < 500 {
		t.Errorf("%d of 2000 got something", given.Load())
	}
}
