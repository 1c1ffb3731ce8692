package migration

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// turns are when guests that wait for something that all namespaces share were last looked at. Its owner holds a lock.
type turns map[types.NamespacedName]time.Time

// has reports whether a guest has its turn, if there is room, and notes that it waits if it has not. Of the namespaces whose guests wait, those
// with the least in had come first.
func (t *turns) has(guest types.NamespacedName, room bool, had map[string]int, now time.Time) bool {
	maps.DeleteFunc(*t, func(other types.NamespacedName, at time.Time) bool {
		if now.Sub(at) > 2*turnDelay {
			return true // it does not wait any more, or was not looked at in time
		}
		room = room && had[other.Namespace] >= had[guest.Namespace]
		return false
	})
	if room {
		delete(*t, guest)
		return true
	}
	if *t == nil {
		*t = turns{}
	}
	(*t)[guest] = now
	return false
}

func (t *turns) forget(guest types.NamespacedName) { delete(*t, guest) }
