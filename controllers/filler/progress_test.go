package filler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// importers stands in for the importers in pods, and for the way to them.
type importers struct {
	mu   sync.Mutex
	says map[string]importer.Progress // by pod
	// process counts the starts of a pod's container. peers are whom the pods were told of, in order.
	process map[string]int
	peers   []string
	open    atomic.Int64
}

// restart starts a pod's container again. It knows no peer then.
func (i *importers) restart(pod string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.process == nil {
		i.process = map[string]int{}
	}
	i.process[pod]++
}

// told is whom the pods were told of until now.
func (i *importers) told() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.peers)
}

func (i *importers) say(pod string, p importer.Progress) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.says == nil {
		i.says = map[string]importer.Progress{}
	}
	i.says[pod] = p
}

func (i *importers) dial(_ context.Context, pod types.NamespacedName) (Connection, error) {
	i.open.Add(1)
	return &conversation{i, pod.Name}, nil
}

type conversation struct {
	with *importers
	pod  string
}

func (c *conversation) Close() { c.with.open.Add(-1) }

func (c *conversation) Ask(context.Context) (importer.Progress, error) {
	c.with.mu.Lock()
	defer c.with.mu.Unlock()
	p, ok := c.with.says[c.pod]
	if !ok {
		return p, errors.New("the importer does not listen")
	}
	return p, nil
}

func (c *conversation) Identity(context.Context) (importer.Identity, error) {
	c.with.mu.Lock()
	defer c.with.mu.Unlock()
	return importer.Identity{Certificate: fmt.Sprintf("%s#%d", c.pod, c.with.process[c.pod])}, nil
}

func (c *conversation) Introduce(_ context.Context, peer importer.Peer) error {
	c.with.mu.Lock()
	defer c.with.mu.Unlock()
	c.with.peers = append(c.with.peers, fmt.Sprintf("%s knows %s at %q", c.pod, peer.Certificate, peer.Address))
	return nil
}

// importerOf is a DataVolume's importer pod of a UID.
func importerOf(volume types.NamespacedName, uid types.UID) Pods {
	return Pods{Importer: types.NamespacedName{Namespace: volume.Namespace, Name: podName(volume.Name)}, UID: uid}
}

var data = types.NamespacedName{Namespace: "ns", Name: "data"}

// follower is a Watcher with a clock that the test moves on.
func follower(t *testing.T, dial Dial) (*Watcher, *clocktesting.FakeClock, <-chan types.NamespacedName) {
	t.Helper()
	changed := make(chan types.NamespacedName, 100)
	c := clocktesting.NewFakeClock(time.Unix(1000, 0))
	w := NewWatcher(dial, c, func(volume types.NamespacedName) { changed <- volume })
	t.Cleanup(w.Close)
	return w, c, changed
}

// await lets time pass until the Watcher has something to say, or as long as it may not.
func await(t *testing.T, c *clocktesting.FakeClock, changed <-chan types.NamespacedName) types.NamespacedName {
	t.Helper()
	const pause = 5 * time.Millisecond
	for range testkit.Patience / pause {
		select {
		case volume := <-changed:
			return volume
		case <-time.After(pause):
			if c.HasWaiters() {
				c.Step(longestRedial)
			}
		}
	}
	t.Fatal("nothing changes")
	return types.NamespacedName{}
}

func TestProgressOfAnImporterIsFollowed(t *testing.T) {
	i := &importers{}
	w, c, changed := follower(t, i.dial)
	if p := w.Follow(data, importerOf(data, "1")); p != nil {
		t.Errorf("%+v before anybody asked", p)
	}
	i.say("importer-data", importer.Progress{Done: 1, Total: 2})
	if got := await(t, c, changed); got != data {
		t.Errorf("%s changed", got)
	}
	if p := w.Follow(data, importerOf(data, "1")); p == nil || p.Done != 1 {
		t.Errorf("%+v", p)
	}
	i.say("importer-data", importer.Progress{Done: 2, Total: 2})
	await(t, c, changed)
	// Another pod of the name begins anew.
	if p := w.Follow(data, importerOf(data, "2")); p != nil {
		t.Errorf("%+v of the pod before", p)
	}
	await(t, c, changed)
	w.Forget(data)
	w.Close()
	if n := i.open.Load(); n != 0 {
		t.Errorf("%d connections are left open", n)
	}
}

// TestHangingImporterHoldsUpNobody: an importer that never answers keeps neither the caller nor Close waiting.
func TestHangingImporterHoldsUpNobody(t *testing.T) {
	var dialed sync.WaitGroup
	dialed.Add(1)
	w := NewWatcher(func(ctx context.Context, _ types.NamespacedName) (Connection, error) {
		dialed.Done()
		<-ctx.Done()
		return nil, ctx.Err()
	}, clock.RealClock{}, func(types.NamespacedName) { t.Error("something changed") })
	w.Follow(data, importerOf(data, "1"))
	dialed.Wait()
	w.Close()
	w.Forget(data)
}
