// Package behind tells a reconciler when its cache is behind its own writes.
package behind

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Writes keeps over which version of an object its status was written last. A cache
// that still has that version has not seen the write: to decide by it would be to
// write the same once more, and the API server would refuse that. Its zero value is
// ready for use.
type Writes struct {
	mu   sync.Mutex
	last map[types.NamespacedName]*write
}

// write is one that has not been seen yet, as far as is known.
type write struct {
	over  string // the version
	asked int
}

const (
	// Pause is how long to wait for the event of a write.
	Pause = time.Second
	// patience is how often a cache may be found behind one write. An API server whose
	// database was restored may have that version for good.
	patience = 10
)

// Note keeps that an object was written over a version. A write that changed
// nothing made no version, and no event that would end the wait for one.
func (w *Writes) Note(before, after client.Object) {
	if before.GetResourceVersion() == after.GetResourceVersion() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last == nil {
		w.last = map[types.NamespacedName]*write{}
	}
	w.last[client.ObjectKeyFromObject(after)] = &write{over: before.GetResourceVersion()}
}

// Behind says whether an object that was read from the cache was written over since.
// The event of that write is still to come; ask again after Pause all the same.
func (w *Writes) Behind(read client.Object) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := w.last[client.ObjectKeyFromObject(read)]
	if last == nil || last.over != read.GetResourceVersion() {
		return false
	}
	last.asked++
	return last.asked <= patience
}

// Forget drops what is kept of an object, which is gone.
func (w *Writes) Forget(name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.last, name)
}
