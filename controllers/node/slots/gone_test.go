package slots

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// outlived is a slot whose pod is on the line, on a clock that stands still.
type outlived struct {
	*testing.T
	*Slots
	dir, folder string
	clock       *clocktesting.FakePassiveClock
	pods        *nodetest.Kubelet
	door        *door
	arrivals    <-chan arrival
}

func newOutlived(t *testing.T) *outlived {
	t.Helper()
	o := &outlived{T: t, dir: testkit.ShortFolder(t), clock: clocktesting.NewFakePassiveClock(time.Now()), pods: &nodetest.Kubelet{}}
	o.pods.Lists(nodetest.Holds("vm1", "a"), true)
	o.open()
	o.folder = nodetest.Folder(t, o.Slots, "vm1")
	o.Registered()
	o.dials("a")
	return o
}

func (o *outlived) open() {
	o.Helper()
	o.Slots, o.arrivals = openSlots(o.T, o.dir, o.pods)
	o.Slots.clock, o.door = o.clock, o.Slots.connect.(*door)
}

// dials lets the launcher dial, and says who it is taken for; "" is refused.
func (o *outlived) dials(want string) {
	o.Helper()
	knock(o.T, o.folder)
	got := arrived(o.T, o.arrivals)
	if (got != nil) != (want != "") || got != nil && got.pod != nodetest.Pod(want) {
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

// TestSessionDoesNotOutliveItsPod: a launcher that gave its slot's socket to another pod does not keep it.
func TestSessionDoesNotOutliveItsPod(t *testing.T) {
	o := newOutlived(t)
	o.collects(time.Hour, false)
	o.pods.Lists(nil, true)
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

// TestRefusedDialsAskLittle: a launcher that is refused does not have the kubelet asked without end, which answers
// only so many questions a second, for the launchers of others too.
func TestRefusedDialsAskLittle(t *testing.T) {
	o := newOutlived(t)
	o.pods.Lists(nil, true)
	o.collects(time.Second, false)
	o.collects(absentPod, true)
	before, begun := o.pods.Asked(), time.Now()
	for range 50 {
		conn, err := nodetest.DialSlot(o.folder)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	<-time.After(refusedDelay)
	asked := o.pods.Asked() - before
	if took := time.Since(begun); asked > 9+int(took/refusedDelay) {
		t.Errorf("for 50 connections at once the kubelet was asked %d times within %s", asked, took)
	}
}

// TestPodListedAgainHasItsSessionAgain: the pod that is listed again has its slot again.
func TestPodListedAgainHasItsSessionAgain(t *testing.T) {
	o := newOutlived(t)
	o.pods.Lists(nil, true)
	o.collects(time.Second, false)
	o.collects(absentPod, true)
	o.dials("")
	o.collects(doubtedSlot/2, true) // longer than any other slot without pod is kept
	o.pods.Lists(nodetest.Holds("vm1", "b"), true)
	o.dials("")
	o.pods.Lists(nodetest.Holds("vm1", "a"), true)
	o.dials("a")
	o.door.ended = nil
	for range 3 {
		o.collects(absentPod, false)
	}
	// And is asked about once more.
	o.pods.Lists(nil, true)
	o.collects(time.Second, false)
	o.collects(absentPod, true)
}

// TestSessionStaysIfThePodIsUnknown: a kubelet that does not know the pod says nothing of it.
func TestSessionStaysIfThePodIsUnknown(t *testing.T) {
	tests := map[string]func(o *outlived){
		"alone":    func(o *outlived) { o.pods.Lists(nil, false) },
		"silent":   func(o *outlived) { o.pods.Says(nil, errors.New("down")) },
		"starting": func(o *outlived) { o.Unregistered(); o.pods.Lists(nil, true) },
		"another":  func(o *outlived) { o.Registered(); o.pods.Lists(nil, true) },
		"listed": func(o *outlived) {
			o.pods.Lists(nodetest.Holds("vm1", "a"), true)
			o.Collect(context.Background())
			o.pods.Lists(nil, true)
		},
	}
	for name, before := range tests {
		t.Run(name, func(t *testing.T) {
			o := newOutlived(t)
			o.pods.Lists(nil, true)
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
