package filler

import (
	"math"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
)

// A copy from another namespace has a pod there, which that namespace did not ask for. So such copies take places: so
// many of those from a namespace for all who copy, and so many for each namespace that does. Namespaces that wait for a
// place take turns.
const (
	placesFrom = 64
	placesFor  = 16
	// placeSeen is how long the cache may take to show a source pod that was made.
	placeSeen = 10 * time.Second
	// goneAfter is how long a source pod that is being deleted keeps its place. A node that is down never lets it go.
	goneAfter = 10 * time.Minute
	// turnSeen is how long a namespace keeps its turn without asking: those that wait ask again after longestPause.
	turnSeen = 2 * longestPause
)

// place is what a source pod takes.
type place struct {
	// from is the namespace of the claim, and asker that of the DataVolume.
	from, asker string
	since       time.Time
}

// turn is since when a namespace waits for a place, and when it asked last, and for which DataVolume.
type turn struct {
	since, asked time.Time
	volume       types.NamespacedName
}

// waiter is a namespace that waits for a place among the copies from another.
type waiter struct {
	from, asker string
}

// places are those of the source pods that the cache may not show yet, by their DataVolumes' UIDs, and the turns of
// who waits for one.
type places struct {
	mu    sync.Mutex
	made  map[types.UID]place
	turns map[waiter]turn
}

// take takes a place for a DataVolume that copies from a namespace, and reports whether there was one. pods are the
// source pods of the cache, of all namespaces.
func (p *places) take(volume *cdi.DataVolume, from string, pods []corev1.Pod, now time.Time) bool {
	if from == volume.Namespace {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.taken(pods, now)
	if _, has := taken[volume.UID]; has {
		return true
	}
	has, all := map[string]int{}, 0 // by asker
	for _, other := range taken {
		if other.from == from && other.asker != from {
			has[other.asker]++
			all++
		}
	}
	me := waiter{from, volume.Namespace}
	if !mayTake(has[me.asker], all, p.ahead(me, client.ObjectKeyFromObject(volume), has, now)) {
		return false
	}
	delete(p.turns, me) // the namespace's next copy is behind all that wait
	if p.made == nil {
		p.made = map[types.UID]place{}
	}
	p.made[volume.UID] = place{from, volume.Namespace, now}
	return true
}

// taken returns the places that are taken, by the DataVolumes' UIDs.
func (p *places) taken(pods []corev1.Pod, now time.Time) map[types.UID]place {
	taken := map[types.UID]place{}
	for uid, made := range p.made {
		if age := now.Sub(made.since); age > placeSeen || age < -placeSeen {
			delete(p.made, uid)
			continue
		}
		taken[uid] = made
	}
	for i := range pods {
		pod := &pods[i]
		of, ok := volumeOf(pod)
		left := pod.DeletionTimestamp != nil && now.Sub(deletedAt(pod)) > goneAfter
		if ok && isSourcePod(pod) && !left {
			taken[types.UID(pod.Labels[forLabel])] = place{from: pod.Namespace, asker: of.Namespace}
		}
	}
	return taken
}

// ahead returns how many namespaces have waited longer for a place than this one, of those that have no more places
// than it. has are the places that each namespace has. From now on this namespace waits too, with a DataVolume.
func (p *places) ahead(me waiter, volume types.NamespacedName, has map[string]int, now time.Time) (count int) {
	for one, t := range p.turns {
		if age := now.Sub(t.asked); age > turnSeen || age < -turnSeen {
			delete(p.turns, one)
		}
	}
	mine, waits := p.turns[me]
	if !waits {
		mine.since = now
	}
	mine.asked, mine.volume = now, volume
	if p.turns == nil {
		p.turns = map[waiter]turn{}
	}
	p.turns[me] = mine
	for one, t := range p.turns {
		asks := one.from == me.from && has[one.asker] <= has[me.asker] && has[one.asker] < placesFor
		if asks && t.since.Before(mine.since) {
			count++
		}
	}
	return count
}

// deletedAt returns when a pod's deletion was asked for. A pod's DeletionTimestamp has its grace period on top, which
// who deletes may choose.
func deletedAt(pod *corev1.Pod) time.Time {
	at := pod.DeletionTimestamp.Time
	if grace := pod.DeletionGracePeriodSeconds; grace != nil {
		at = at.Add(-time.Duration(min(*grace, math.MaxInt32)) * time.Second)
	}
	return at
}

// next returns the DataVolumes that wait for a place among the copies from a namespace, one for each namespace: a
// place that is free is for one of them.
func (p *places) next(from string) (volumes []types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for one, t := range p.turns {
		if one.from == from {
			volumes = append(volumes, t.volume)
		}
	}
	return volumes
}

// give gives back the place of a DataVolume whose source pod was not made.
func (p *places) give(volume *cdi.DataVolume) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.made, volume.UID)
}

// mayTake reports whether a namespace that has own places of all that are taken may take another, while so many
// namespaces are ahead. It leaves one to each of those, and at least as many as it has itself: the next one is for a
// namespace that has fewer. It is pure.
func mayTake(own, all, ahead int) bool {
	return own < min(placesFor, placesFrom-all-ahead)
}
