package node

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// outlived is a slot whose pod is on the line, on a clock that stands still.
type outlived struct {
	*testing.T
	*Slots
	dir, folder string
	clock       *clocktesting.FakePassiveClock
	pods        *kubelet
	door        *door
	arrivals    <-chan arrival
}

func newOutlived(t *testing.T) *outlived {
	t.Helper()
	o := &outlived{T: t, dir: t.TempDir(), clock: clocktesting.NewFakePassiveClock(time.Now()), pods: &kubelet{held: holds("vm1", "a"), whole: true}}
	o.open()
	o.folder = newFolder(t, o.Slots, "vm1")
	o.Registered()
	o.dials("a")
	return o
}

func (o *outlived) open() {
	o.Helper()
	o.Slots, o.arrivals = openSlots(o.T, o.dir, o.pods)
	o.Slots.clock, o.door = o.clock, o.Slots.connect.(*door)
}

// dials has the launcher dial, and says who it is taken for; "" is refused.
func (o *outlived) dials(want string) {
	o.Helper()
	knock(o.T, o.folder)
	got := arrived(o.T, o.arrivals)
	if (got != nil) != (want != "") || got != nil && got.pod != podNamed(want) {
		o.Fatalf("the launcher is taken for %v, want %q", got, want)
	}
	o.door.live = want != ""
}

// collects looks once, after some time.
func (o *outlived) collects(after time.Duration, wantEnded bool) {
	o.Helper()
	o.clock.SetTime(o.clock.Now().Add(after))
	if err := o.Collect(context.Background()); err != nil {
		o.Fatal(err)
	}
	if ended := len(o.door.ended) > 0; ended != wantEnded {
		o.Fatalf("the connection was ended: %v, want %v", ended, wantEnded)
	}
}

func (o *outlived) lists(held map[string][]types.NamespacedName, whole bool) {
	o.pods.mu.Lock()
	defer o.pods.mu.Unlock()
	o.pods.held, o.pods.whole = held, whole
}

// A launcher that gave its slot's socket to another pod does not keep it.
func TestSessionDoesNotOutliveItsPod(t *testing.T) {
	o := newOutlived(t)
	o.collects(time.Hour, false)
	o.lists(nil, true)
	o.collects(time.Second, false)
	o.collects(absentPod-1, false)
	o.collects(1, true)
	if want := []string{filepath.Base(o.folder)}; !reflect.DeepEqual(o.door.ended, want) {
		t.Errorf("ended %v, want %v", o.door.ended, want)
	}
	o.dials("")
	// A virt-handler that is restarted knows it, too.
	o.Slots.Close()
	o.open()
	o.Registered()
	o.dials("")
	o.collects(time.Second, false)
	o.collects(doubtedSlot, false)
	if left := names(t, o.dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// Nor does it have the kubelet asked without end, which answers only so many
// questions a second, for the launchers of others too.
func TestRefusedDialsAskLittle(t *testing.T) {
	o := newOutlived(t)
	o.lists(nil, true)
	o.collects(time.Second, false)
	o.collects(absentPod, true)
	o.pods.mu.Lock()
	before := o.pods.asked
	o.pods.mu.Unlock()
	for range 50 {
		conn, err := dialSlot(o.folder)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	<-time.After(refusedPause)
	o.pods.mu.Lock()
	defer o.pods.mu.Unlock()
	if n := o.pods.asked - before; n > 10 {
		t.Errorf("for 50 connections at once the kubelet was asked %d times within %s", n, refusedPause)
	}
}

// The pod that is listed again has its slot again.
func TestSessionComesBack(t *testing.T) {
	o := newOutlived(t)
	o.lists(nil, true)
	o.collects(time.Second, false)
	o.collects(absentPod, true)
	o.dials("")
	o.collects(doubtedSlot/2, true) // longer than any other slot without pod is kept
	o.lists(holds("vm1", "b"), true)
	o.dials("")
	o.lists(holds("vm1", "a"), true)
	o.dials("a")
	o.door.ended = nil
	for range 3 {
		o.collects(absentPod, false)
	}
	// And is asked about once more.
	o.lists(nil, true)
	o.collects(time.Second, false)
	o.collects(absentPod, true)
}

// Who does not know the pod says nothing of it.
func TestSessionStays(t *testing.T) {
	tests := map[string]func(o *outlived){
		"alone":    func(o *outlived) { o.lists(nil, false) },
		"silent":   func(o *outlived) { o.pods.says(nil, errors.New("down")) },
		"starting": func(o *outlived) { o.Unregistered(); o.lists(nil, true) },
		"another":  func(o *outlived) { o.Registered(); o.lists(nil, true) },
		"listed": func(o *outlived) {
			o.lists(holds("vm1", "a"), true)
			o.Collect(context.Background())
			o.lists(nil, true)
		},
	}
	for name, before := range tests {
		t.Run(name, func(t *testing.T) {
			o := newOutlived(t)
			o.lists(nil, true)
			o.collects(time.Second, false)
			for range 5 {
				o.clock.SetTime(o.clock.Now().Add(absentPod))
				before(o)
				o.clock.SetTime(o.clock.Now().Add(time.Second))
				o.Collect(context.Background())
				if len(o.door.ended) > 0 {
					t.Fatal("the connection was ended")
				}
			}
		})
	}
}

// With real sessions: the connection ends, nothing else of the pod does, and the
// launcher is taken again once its pod is listed.
func TestSessionEnds(t *testing.T) {
	n := newNode(t)
	clock := clocktesting.NewFakePassiveClock(time.Now())
	n.slots.clock = clock
	pods := n.slots.pods.(*kubelet)
	folder := newFolder(t, n.slots, "vm1")
	n.slots.Registered()
	netns := podNetwork(t)
	greet := func() {
		dialLauncher(t, folder).send(control.EventHello, goodHello(), netnsFile(t, netns))
		n.awaitChange(t)
	}
	greet()
	pods.mu.Lock()
	listed := pods.held
	pods.held, pods.whole = nil, true
	pods.mu.Unlock()
	for range 2 {
		clock.SetTime(clock.Now().Add(absentPod))
		if err := n.slots.Collect(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	n.awaitChange(t)
	if n.sessions.Get(podNamed("a")) != nil || n.sessions.Connected(filepath.Base(folder)) {
		t.Error("the session goes on")
	}
	knock(t, folder) // and is not served
	pods.says(listed, nil)
	greet()
	if n.sessions.Get(podNamed("a")) == nil {
		t.Error("the launcher is not taken again")
	}
}
