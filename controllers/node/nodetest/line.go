package nodetest

import (
	"os"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Line leads from launchers to a set of sessions, without slots: whoever dials is
// pod a's launcher.
type Line struct {
	Set interface {
		Connect(slot string, pod types.NamespacedName, conn *control.Conn) bool
	}
	changed chan types.NamespacedName
}

// NewLine returns a Line whose Set is to be set.
func NewLine() *Line { return &Line{changed: make(chan types.NamespacedName, 100)} }

// Changed notes a change. The Set is to call it.
func (l *Line) Changed(pod types.NamespacedName) { l.changed <- pod }

// Changes counts the changes that nobody has awaited.
func (l *Line) Changes() int { return len(l.changed) }

// Dial connects a launcher with a slot. A connection that the Set does not take is
// closed, as slots do.
func (l *Line) Dial(t *testing.T, slot string) *Launcher {
	t.Helper()
	ours, theirs := testkit.SocketPair(t)
	if !l.Set.Connect(slot, Pod("a"), control.NewConn(ours)) {
		control.CloseInterrupted(ours)
	}
	return NewLauncher(t, theirs)
}

// Greet does what Dial does, and says hello with a pod's network.
func (l *Line) Greet(t *testing.T, slot string, hello control.Hello, netns ns.NetNS) *Launcher {
	t.Helper()
	launcher := l.Dial(t, slot)
	launcher.Send(control.EventHello, hello, NetNSFile(t, netns))
	l.Await(t)
	return launcher
}

// Await waits until the Set tells of pod a.
func (l *Line) Await(t *testing.T) {
	t.Helper()
	if pod := testkit.Receive(t, l.changed, "a change"); pod != Pod("a") {
		t.Fatalf("change of %v", pod)
	}
}

// Open opens a file for the test's time.
func Open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
