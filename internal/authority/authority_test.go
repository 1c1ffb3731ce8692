package authority

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)

const day = 24 * time.Hour

// madeOn is an authority of a day after start; without key where that is told.
func madeOn(t *testing.T, on time.Duration, key bool) CA {
	t.Helper()
	a, err := New("test")(start.Add(on))
	if err != nil {
		t.Fatal(err)
	}
	if !key {
		a.Key = nil
	}
	return a
}

// text names each authority by the day that it was made on, with a k where it has
// its key, and a * where it signs.
func text(as CAs, now time.Time) string {
	var parts []string
	signing := as.Signing(now)
	for i, a := range as {
		s := fmt.Sprint(int(a.made().Sub(start) / day))
		if a.Key != nil {
			s += "k"
		}
		if i == signing {
			s += "*"
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, " ")
}

// TestRotate: what becomes of authorities at a time. Days are of Life, which is 30:
// an authority is renewed at 20, and signs an hour after it was made.
func TestRotate(t *testing.T) {
	type ca struct {
		on  time.Duration
		key bool
	}
	for _, tt := range []struct {
		name string
		has  []ca
		now  time.Duration
		want string
	}{
		{"none", nil, 0, "0k*"},
		{"a good one", []ca{{0, true}}, 3 * day, "0k*"},
		{"two thirds are over", []ca{{0, true}}, 20 * day, "20k 0k*"},
		{"the next settles", []ca{{20 * day, true}, {0, true}}, 20*day + time.Minute, "20k 0k*"},
		{"the next signs", []ca{{20 * day, true}, {0, true}}, 20*day + time.Hour, "20k* 0"},
		{"the old one is over", []ca{{20 * day, true}, {0, false}}, 31 * day, "20k* 0"},
		{"the next but one", []ca{{20 * day, true}, {0, false}}, 40 * day, "40k 20k*"},
		{"its key is lost", []ca{{0, false}}, 3 * day, "3k* 0"},
		{"a long night", []ca{{0, true}}, 90 * day, "90k* 0k"},
		{"after a long night", []ca{{90 * day, true}, {0, true}}, 91 * day, "90k* 0k"},
		{"long after it", []ca{{90 * day, true}, {0, true}}, 110 * day, "110k 90k*"},

		// The clock was ahead for a minute, and is right again.
		{"ahead: another was made", []ca{{25 * day, true}, {0, true}}, 3 * day, "25k 0k*"},
		{"years ahead: the old one is there", []ca{{3000 * day, true}, {0, true}}, 3 * day, "3000k 0k*"},
		{"years ahead: the old one's time", []ca{{3000 * day, true}, {0, true}}, 20 * day, "20k 0k*"},
		{"years ahead, for long: it has lost its key", []ca{{25 * day, true}, {0, false}}, 3 * day, "25k 3k* 0"},
		{"years ahead, for long: it is gone", []ca{{3000 * day, true}}, 3 * day, "3000k 3k*"},
		{"nothing more is to be done", []ca{{3000 * day, true}, {3 * day, true}}, 4 * day, "3000k 3k*"},
		{"its time comes", []ca{{3000 * day, true}, {2990 * day, true}}, 3000*day + time.Minute, "3000k 2990k*"},
		// The clock is ahead: what is needed later is kept.
		{"now years ahead", []ca{{0, true}}, 3000 * day, "3000k* 0k"},
		{"now years ahead, and it settles", []ca{{3000 * day, true}, {0, true}}, 3001 * day, "3000k* 0k"},
		// And behind.
		{"years behind", []ca{{0, true}}, -3000 * day, "0k -3000k*"},
		{"no longer behind", []ca{{0, true}, {-3000 * day, true}}, 3 * day, "0k* -3000k"},

		{"many wrong clocks", []ca{{9000 * day, true}, {8000 * day, true}, {7000 * day, true}, {6000 * day, true}, {5000 * day, true}, {4000 * day, true}, {3000 * day, true}, {2000 * day, true}},
			0, "8000k 7000k 6000k 5000k 4000k 3000k 2000k 0k*"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var has CAs
			for _, c := range tt.has {
				has = append(has, madeOn(t, c.on, c.key))
			}
			now := start.Add(tt.now)
			before := text(has, now)
			got, changed, err := has.Rotate(now, New("test"))
			if err != nil || text(got, now) != tt.want {
				t.Errorf("%q became %q (%v), want %q", before, text(got, now), err, tt.want)
			}
			if changed != (before != tt.want) {
				t.Errorf("%q became %q, and it says changed: %v", before, text(got, now), changed)
			}
			if len(has) > 0 && changed != !now.Before(has.NextChange(now)) {
				t.Errorf("it is %s, and the next change is at %s", now, has.NextChange(now))
			}
			if again, changed, err := got.Rotate(now, New("test")); changed || err != nil {
				t.Errorf("a second time it became %q (%v)", text(again, now), err)
			}
			if next := got.NextChange(now); !next.After(now) {
				t.Errorf("the next change is at %s, it is %s", next, now)
			}
		})
	}
}
