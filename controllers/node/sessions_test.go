package node

import (
	"testing"

	"github.com/go-logr/logr/testr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/controllers/node/start"
	"github.com/kubeqemu/kubeqemu/controllers/node/wiring"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// testNode is a node's sessions, and the line to them.
type testNode struct {
	*nodetest.Line
	sessions *sessions.Set
}

func newNode(t *testing.T) *testNode {
	t.Helper()
	n := &testNode{Line: nodetest.NewLine()}
	n.sessions = sessions.NewSet(testr.New(t), n.Changed)
	n.Set = n.sessions
	t.Cleanup(n.sessions.Close)
	return n
}

// newStarter returns the Starter of a node that emulates.
func newStarter() *start.Starter {
	return &start.Starter{Chooser: nodetest.Emulating(), Clock: clock.RealClock{}, Wiring: wiring.Wirer{Events: events.NewFakeRecorder(10)}}
}

// connected returns a set of launchers that said hello before the test. Without a Client they cannot be asked.
func connected(t *testing.T, all ...*sessions.Session) *sessions.Set {
	t.Helper()
	set := sessions.NewSet(testr.New(t), func(types.NamespacedName) {})
	for _, s := range all {
		if !set.Add(s) {
			t.Fatalf("the session of %s is not taken", s.Pod)
		}
	}
	return set
}

// reporting returns a launcher of a pod that has reported a state.
func reporting(pod types.NamespacedName, state control.StateReport) *sessions.Session {
	s := &sessions.Session{Slot: pod.Name, Pod: pod}
	s.SetState(state)
	return s
}
