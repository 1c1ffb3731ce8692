package group

import "time"

// A group's new members start few at a time: as many may be on their way as run already, within these bounds. So a
// template that cannot start costs the cluster few members, whatever number the group wants.
const (
	fewestStarting = 8
	mostStarting   = 32
	// Burst bounds what a plan deletes and changes, and how many members it makes that are not to start: a worker must
	// not be busy with one group for long. The next plan does the rest.
	Burst = 50
	// longestStart is how long a group waits for a member that does not start. It may never start, and the group's template may have been
	// mended since: a ReplicaSet's template changes no member that is there.
	longestStart = 10 * time.Minute
)

// Starting counts a group's starting members that the group waits for, by the times at which they were made. again is how long it takes until the first of
// these is waited for no longer; 0 if there is none. It is pure.
func Starting(made []time.Time, now time.Time) (count int, again time.Duration) {
	for _, at := range made {
		left := min(at.Add(longestStart).Sub(now), longestStart) // the clock may have been set back
		if left <= 0 {
			continue
		}
		if count++; again == 0 || left < again {
			again = left
		}
	}
	return count, again
}

// Room returns how many of the wanted new members may be made now, of a group of which some run, and others are
// starting. It waits until half of those have started: each plan that makes members reads the whole group past the
// cache. It is pure.
func Room(wanted, running, starting int) int {
	limit := min(max(running, fewestStarting), mostStarting)
	if starting > limit/2 {
		return 0
	}
	return min(max(wanted, 0), limit-starting)
}
