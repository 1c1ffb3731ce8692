package kit

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Writes tells a reconciler when its cache is behind the reconciler's own writes. It
// keeps, for each object, the version over which the status was last written. A
// cache that still has that version has not seen the write. A decision by that
// version would repeat the write, and the API server would refuse the repetition.
// The zero value is ready for use.
type Writes struct {
	mu   sync.Mutex
	last map[types.NamespacedName]*write
}

// write is a write that the cache may not have seen yet.
type write struct {
	over  string // the version that was written over
	asked int
}

const (
	// WriteDelay is how long a reconciler waits for the event of its write.
	WriteDelay = time.Second
	// patience is how many times the cache may be found behind the same write. When the API
	// server's database was restored, that version may stay for good.
	patience = 10
)

// Note keeps the version that a write replaced. A write that changed nothing makes
// no version and no event, and is not kept.
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

// Behind says whether an object from the cache is older than the last write. The
// event of that write is still to come; ask again after WriteDelay all the same.
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

// Forget drops an object that is gone.
func (w *Writes) Forget(name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.last, name)
}
