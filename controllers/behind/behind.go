// Package behind tells a reconciler when its cache is behind its own writes.
package behind

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Writes keeps over which version of an object its status was written last. A cache
// that still has that version has not seen the write: to decide by it would be to
// write the same once more, and the API server would refuse that. Its zero value is
// ready for use.
type Writes struct {
	mu       sync.Mutex
	versions map[types.NamespacedName]string
}

// Note keeps that an object was written over a version. A write that changed
// nothing made no version, and no event that would end the wait for one.
func (w *Writes) Note(before, after client.Object) {
	if before.GetResourceVersion() == after.GetResourceVersion() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.versions == nil {
		w.versions = map[types.NamespacedName]string{}
	}
	w.versions[client.ObjectKeyFromObject(after)] = before.GetResourceVersion()
}

// Behind says whether an object that was read from the cache was written over since.
// The event of that write is still to come.
func (w *Writes) Behind(read client.Object) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	version, written := w.versions[client.ObjectKeyFromObject(read)]
	return written && version == read.GetResourceVersion()
}

// Forget drops what is kept of an object, which is gone.
func (w *Writes) Forget(name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.versions, name)
}
