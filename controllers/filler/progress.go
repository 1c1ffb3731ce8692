package filler

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubeqemu/kubeqemu/internal/importer"
)

const (
	// askEvery is the pause between two questions to an importer.
	askEvery = 2 * time.Second
	// askTimeout bounds one question, and the making of one connection.
	askTimeout = 10 * time.Second
	// longestRedial bounds the pause before the next connection, which grows from askEvery.
	longestRedial = 30 * time.Second
)

// Connection asks one importer. What it does ends with its context.
type Connection interface {
	// Ask returns the progress.
	Ask(context.Context) (importer.Progress, error)
	// Identity and Introduce are for a pod that has a peer.
	Identity(context.Context) (importer.Identity, error)
	Introduce(context.Context, importer.Peer) error
	Close()
}

// Dial connects to the importer in a pod. It ends with its context.
type Dial func(ctx context.Context, pod types.NamespacedName) (Connection, error)

// Watcher follows importers, each in a goroutine of its own: an importer that hangs keeps nobody else
// waiting.
type Watcher struct {
	dial  Dial
	clock clock.Clock
	// changed is called when an importer's progress changed, with its pod's DataVolume.
	changed func(volume types.NamespacedName)

	stop    context.CancelFunc
	stopped context.Context
	ended   sync.WaitGroup
	mu      sync.Mutex
	by      map[types.NamespacedName]*followed // by DataVolume
}

// followed is one importer.
type followed struct {
	pods   Pods
	cancel context.CancelFunc
	last   *importer.Progress
}

// NewWatcher makes a Watcher. Close ends it.
func NewWatcher(dial Dial, c clock.Clock, changed func(volume types.NamespacedName)) *Watcher {
	w := &Watcher{dial: dial, clock: c, changed: changed, by: map[types.NamespacedName]*followed{}}
	w.stopped, w.stop = context.WithCancel(context.Background())
	return w
}

// Close ends all goroutines, and waits for them.
func (w *Watcher) Close() {
	w.stop()
	w.ended.Wait()
}

// Follow sees to it that the importer in a DataVolume's pod is followed, and knows its source pod. It
// returns what the importer said last, or nil.
func (w *Watcher) Follow(volume types.NamespacedName, pods Pods) *importer.Progress {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.by[volume]
	if f != nil && f.pods == pods {
		return f.last
	}
	if f != nil {
		f.cancel()
	}
	f = &followed{pods: pods}
	var ctx context.Context
	ctx, f.cancel = context.WithCancel(w.stopped)
	w.by[volume] = f
	w.ended.Go(func() { w.follow(ctx, volume, f) })
	return nil
}

// Forget ends the following of a DataVolume's importer.
func (w *Watcher) Forget(volume types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f := w.by[volume]; f != nil {
		f.cancel()
		delete(w.by, volume)
	}
}

// follow asks until its context ends. A connection that fails is made anew.
func (w *Watcher) follow(ctx context.Context, volume types.NamespacedName, f *followed) {
	pause := askEvery
	for ctx.Err() == nil {
		if w.converse(ctx, volume, f) {
			pause = askEvery
		} else {
			pause = min(2*pause, longestRedial)
		}
		w.note(volume, f, nil)
		w.sleep(ctx, pause)
	}
}

// converse asks over one connection until it fails, and says whether the importer answered.
func (w *Watcher) converse(ctx context.Context, volume types.NamespacedName, f *followed) (answered bool) {
	dialing, cancel := context.WithTimeout(ctx, askTimeout)
	connection, err := w.connect(dialing, f.pods)
	cancel()
	if err != nil {
		return false // the importer may not listen yet; the next round tries again
	}
	defer connection.Close()
	for ctx.Err() == nil {
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		progress, err := connection.Ask(asking)
		cancel()
		if err != nil {
			return answered
		}
		answered = true
		w.note(volume, f, &progress)
		w.sleep(ctx, askEvery)
	}
	return answered
}

// note keeps what an importer said, and tells if it changed.
func (w *Watcher) note(volume types.NamespacedName, f *followed, progress *importer.Progress) {
	w.mu.Lock()
	if w.by[volume] != f {
		w.mu.Unlock()
		return // another pod is followed, or none
	}
	changed := progress != nil && (f.last == nil || *f.last != *progress)
	f.last = progress
	w.mu.Unlock()
	if changed {
		w.changed(volume)
	}
}

func (w *Watcher) sleep(ctx context.Context, pause time.Duration) {
	timer := w.clock.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
	}
}
