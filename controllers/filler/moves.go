package filler

import (
	"cmp"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/internal/importer"
)

// A copy that has a place keeps others from theirs. Some copies never begin, because their importer pod fits on no node
// or its image is missing. So a copy that does not move loses its place. The importer pod reports how far the copy is. A
// user who may exec in that pod can forge the report, so this file bounds every time that depends on it.
const (
	// stillFor is how long a copy may stand still.
	stillFor = 10 * time.Minute
	// unheardFor is how much of a copy's time does not count, because nobody knows how far it is although it has begun:
	// the two pods need nobody else.
	unheardFor = time.Hour
	// endFor is how long the end may last: an importer that makes zeros of the rest of a device does not count them.
	endFor = 24 * time.Hour
	// endAt is the percentage at which the end begins.
	endAt = 99.0
	// placeFor is how long a copy has its place at most.
	placeFor = 14 * 24 * time.Hour
	// leastMove is the part of a percent that counts as a move, unless leastBytes of the disk are less.
	leastMove  = 0.1
	leastBytes = 1 << 30
	// beginnings is how often a copy may begin anew, as it does if its importer pod is evicted.
	beginnings = 3
)

// move is how far a copy is, and when it moved last.
type move struct {
	// source is the UID of the copy's source pod.
	source types.UID
	// percent is the highest that the importer has said since the last new beginning that counts.
	percent float64
	// since is when the copy got its place, seen when it was looked at last, and at when it moved last.
	since, seen, at time.Time
	// end is when the copy first was at its end, or zero.
	end time.Time
	// unheard is how much of unheardFor is used up.
	unheard time.Duration
	// anew is how often the copy began anew.
	anew int
}

// heard is what is known of a copy at a moment.
type heard struct {
	// source is the UID of the copy's source pod, and made when that was created.
	source types.UID
	made   time.Time
	// before is the percentage in the DataVolume's status.
	before float64
	// said is what the importer said last, or nil.
	said *importer.Progress
	// capacity is the claim's, in bytes.
	capacity int64
	now      time.Time
}

// next returns how far the copy is after something was heard of it, or nothing. It is pure.
func (m move) next(h heard) move {
	if m.source != h.source || m.seen.After(h.now) { // this clock may have been set back
		m = move{source: h.source, percent: h.before, since: h.now, seen: h.now, at: h.now}
		if h.made.Before(h.now) {
			m.since = h.made
		}
	}
	passed := h.now.Sub(m.seen)
	m.seen = h.now
	percent, known := 0.0, false
	if h.said != nil {
		percent, known = h.said.Percent()
	}
	least := leastOf(h.capacity)
	switch {
	case !known && m.percent > 0:
		spent := min(passed, unheardFor-m.unheard)
		m.unheard, m.at = m.unheard+spent, m.at.Add(spent)
	case !known:
	case percent >= m.percent+least || percent >= endAt && m.percent < endAt:
		m.percent, m.at = percent, h.now
	case percent <= m.percent-least && m.anew < beginnings:
		m.percent, m.at, m.anew, m.end = percent, h.now, m.anew+1, time.Time{}
	}
	if known && m.end.IsZero() && m.percent >= endAt {
		m.end = h.now
	}
	return m
}

// leastOf returns how many percent count as a move of a copy into a claim. A tenth of a percent of a huge disk takes
// long.
func leastOf(capacity int64) float64 {
	if capacity <= 0 {
		return leastMove
	}
	return min(leastMove, 100*leastBytes/float64(capacity))
}

// lost returns why a copy loses its place, or nothing.
func (m move) lost(now time.Time) string {
	switch {
	case m.since.IsZero():
	case now.Sub(m.since) >= placeFor:
		return fmt.Sprintf("has had its place for %.0f days", placeFor.Hours()/24)
	case !m.end.IsZero() && now.Sub(m.end) >= endFor:
		return fmt.Sprintf("has not ended within %.0f hours after %.0f%%", endFor.Hours(), endAt)
	case m.end.IsZero() && now.Sub(m.at) >= stillFor:
		return fmt.Sprintf("has stood still for %.0f minutes", stillFor.Minutes())
	}
	return ""
}

// moves remembers how far the copies are that have places. After a restart of virt-controller their times begin anew,
// but for that of the place, which the source pod tells.
type moves struct {
	mu sync.Mutex
	by map[types.NamespacedName]move // by DataVolume
}

// note returns how far the copy of a DataVolume is, or the zero move of a copy that has no place.
func (m *moves) note(w world) move {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := client.ObjectKeyFromObject(w.volume)
	source := w.placed()
	if source == nil {
		delete(m.by, key)
		return move{}
	}
	if m.by == nil {
		m.by = map[types.NamespacedName]move{}
	}
	h := heard{source: source.UID, made: source.CreationTimestamp.Time, said: w.progress, now: w.now}
	if before, ok := percentOf(w.volume.Status.Progress); ok && before > 0 && before <= 100 {
		h.before = before // all that is left after a restart of virt-controller
	}
	if w.claim != nil {
		h.capacity = w.claim.Status.Capacity.Storage().Value()
	}
	m.by[key] = m.by[key].next(h)
	return m.by[key]
}

func (m *moves) forget(volume types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.by, volume)
}

// placed returns the source pod by which a copy has a place, or nil.
func (w *world) placed() *corev1.Pod {
	if !w.copies() || w.origin.at.Namespace == w.volume.Namespace {
		return nil
	}
	if pod := w.origin.pod(w.volume); pod != nil && pod.DeletionTimestamp == nil {
		return pod
	}
	return nil
}

// rests reports whether a copy has lost its place and does not ask for another yet, or loses it now. Its two pods go.
func (s *step) rests(w world) bool {
	old := w.volume.Status.Condition(cdi.Running)
	if old != nil && old.Reason == reasonCloneStalled {
		left := backoff(s.status.RestartCount) - w.now.Sub(old.LastHeartbeatTime.Time)
		if left > 0 && left <= longestBackoff { // this clock may have been set back
			s.wait(w, notice{corev1.EventTypeWarning, reasonCloneStalled, old.Message})
			s.after = left
			return true
		}
	}
	why := w.moved.lost(w.now)
	if w.placed() == nil || why == "" {
		return false
	}
	s.status.RestartCount = min(s.status.RestartCount+1, maxRestarts)
	pause := backoff(s.status.RestartCount)
	s.wait(w, notice{corev1.EventTypeWarning, reasonCloneStalled,
		fmt.Sprintf("The copy from %s %s, and has lost its place to others. It asks for another %s later. %s",
			w.origin.at, why, pause, w.standstill())})
	s.after = pause
	return true
}

// standstill returns what a copy that stands still waits for.
func (w *world) standstill() string {
	of := func(what string, pod *corev1.Pod) string {
		reason, message := failure(pod)
		if reason == "" && pod.Status.Phase != corev1.PodRunning {
			reason, message = obstacle(pod)
		}
		if reason == "" {
			return ""
		}
		return fmt.Sprintf("%s %s: %s", what, fullName(pod), strings.TrimSuffix(reason+", "+message, ", "))
	}
	source := of("Source pod", w.placed())
	switch {
	case source != "" || w.pod == nil:
		return cmp.Or(source, "It has no importer pod.")
	case w.pod.DeletionTimestamp != nil:
		return fmt.Sprintf("Importer pod %s is being deleted, and does not go.", fullName(w.pod))
	}
	return cmp.Or(of("Importer pod", w.pod),
		fmt.Sprintf("Importer pod %s runs, and had copied %.1f%%.", fullName(w.pod), w.moved.percent))
}
