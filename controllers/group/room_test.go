package group

import (
	"testing"
	"time"
)

// TestMembersStartFewAtATime: more only as members run, and never more than a bound, whatever the group wants.
func TestMembersStartFewAtATime(t *testing.T) {
	const huge = 1 << 31
	for _, c := range []struct{ wanted, running, starting, want int }{
		{3, 0, 0, 3}, {0, 0, 0, 0}, {-5, 9, 0, 0},
		{huge, 0, 0, fewestStarting}, {huge, 0, fewestStarting, 0}, {huge, 0, fewestStarting - 1, 0},
		{huge, 4, 4, 4}, {huge, 8, 0, 8}, {huge, 16, 0, 16}, {huge, 900, 0, mostStarting}, {huge, 900, 16, 16}, {huge, 900, 17, 0}, {2, 900, 16, 2},
	} {
		if got := Room(c.wanted, c.running, c.starting); got != c.want {
			t.Errorf("of %d wanted, with %d running and %d starting: %d may be made, want %d", c.wanted, c.running, c.starting, got, c.want)
		}
	}
	running, plans := 0, 0
	for ; running < 1000; plans++ {
		running += Room(1000-running, running, 0)
	}
	if plans > 40 {
		t.Errorf("1000 members take %d plans", plans)
	}
}

// TestMembersThatDoNotStartAreWaitedForNoLonger: after ten minutes, and no sooner where the clock was set back.
func TestMembersThatDoNotStartAreWaitedForNoLonger(t *testing.T) {
	now := time.Unix(1e9, 0)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for name, c := range map[string]struct {
		made  []time.Time
		count int
		again time.Duration
	}{
		"none":             {nil, 0, 0},
		"two":              {[]time.Time{ago(time.Minute), ago(9 * time.Minute)}, 2, time.Minute},
		"too old":          {[]time.Time{ago(longestStart), ago(time.Hour), ago(0)}, 1, longestStart},
		"from the future":  {[]time.Time{ago(-time.Hour)}, 1, longestStart},
		"all of them, old": {[]time.Time{ago(time.Hour)}, 0, 0},
	} {
		if count, again := Starting(c.made, now); count != c.count || again != c.again {
			t.Errorf("%s: %d, again in %s; want %d, %s", name, count, again, c.count, c.again)
		}
	}
}
