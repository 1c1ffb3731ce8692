package slots

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// served are slots whose launchers get sessions, and a kubelet that gave device vm1
// to pod a.
type served struct {
	*nodetest.Line
	slots    *Slots
	sessions *sessions.Set
	kubelet  *nodetest.Kubelet
}

func newServed(t *testing.T) *served {
	t.Helper()
	n := &served{Line: nodetest.NewLine(), kubelet: nodetest.NewKubelet(nodetest.Holds("vm1", "a"))}
	n.sessions = sessions.NewSet(testr.New(t), n.Changed)
	t.Cleanup(n.sessions.Close)
	var err error
	if n.slots, err = Open(testkit.ShortFolder(t), Resource{}, n.kubelet, testr.New(t), n.sessions); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.slots.Close)
	return n
}

// TestFilesThatCloseSlowly: a launcher that sends a file whose close(2) does not
// return holds up itself, and nobody else.
func TestFilesThatCloseSlowly(t *testing.T) {
	n := newServed(t)
	n.kubelet.Hold("vm3", nodetest.Pod("b"))
	hostile := nodetest.Folder(t, n.slots, "vm3")
	files := []*os.File{nodetest.Lingering(t), nodetest.Lingering(t)}
	nodetest.Dial(t, hostile) // says nothing, so that the next is refused, and the last left in the backlog
	for _, f := range files {
		nodetest.Dial(t, hostile).Send("lingers", nil, f)
		(&control.Closer{}).Close(f) // the one on its way is the last, unless it is closed already
	}

	work := make(chan struct{})
	go func() {
		defer close(work)
		for range 20 { // while the second is taken up
			n.sessions.Get(nodetest.Pod("a"))
			time.Sleep(25 * time.Millisecond)
		}
		if _, err := n.slots.New("vm3"); err != nil { // the old slot is dropped
			t.Error(err)
		}
		n.sessions.Get(nodetest.Pod("a"))
	}()
	testkit.Receive(t, work, "work with sessions and slots of others, which waits for no file")
	launcher := nodetest.Dial(t, nodetest.Folder(t, n.slots, "vm1"))
	launcher.Send(control.EventHello, nodetest.Hello(), nodetest.NetNSFile(t, nodetest.PodNetwork(t)))
	n.Await(t)
}

// TestSessionEnds: with real sessions: the connection ends, nothing else of the pod does, and the launcher is taken
// again once its pod is listed.
func TestSessionEnds(t *testing.T) {
	n := newServed(t)
	clock := clocktesting.NewFakePassiveClock(time.Now())
	n.slots.clock = clock
	folder := nodetest.Folder(t, n.slots, "vm1")
	n.slots.Registered()
	netns := nodetest.PodNetwork(t)
	greet := func() {
		nodetest.Dial(t, folder).Send(control.EventHello, nodetest.Hello(), nodetest.NetNSFile(t, netns))
		n.Await(t)
	}
	greet()
	n.kubelet.Lists(nil, true)
	for range 2 {
		clock.SetTime(clock.Now().Add(absentPod))
		if err := n.slots.Collect(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	n.Await(t)
	if n.sessions.Get(nodetest.Pod("a")) != nil || n.sessions.Connected(filepath.Base(folder)) {
		t.Error("the session goes on")
	}
	knock(t, folder) // and is not served
	n.kubelet.Says(nodetest.Holds("vm1", "a"), nil)
	greet()
	if n.sessions.Get(nodetest.Pod("a")) == nil {
		t.Error("the launcher is not taken again")
	}
}
