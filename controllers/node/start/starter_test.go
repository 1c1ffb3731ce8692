package start

import (
	"strings"
	"testing"

	"github.com/go-logr/logr/testr"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/kubeqemu/kubeqemu/controllers/node/accelerator"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/controllers/node/wiring"
	"github.com/kubeqemu/kubeqemu/internal/kvmcheck"
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

// rejects reports whether a launcher was told that its VM can never be started, with such a reason.
func rejects(m *control.Message, why string) bool {
	var said control.Termination
	err := control.Decode(m.Data, &said)
	return m.Execute == control.CommandReject && err == nil && strings.Contains(said.Message, why)
}

// newStarter returns the Starter of a node with such a KVM, in a cluster that permits emulation.
func newStarter(kvm kvmcheck.Result) *Starter {
	chooser := accelerator.New(kvm)
	chooser.PermitEmulation(true)
	return &Starter{Chooser: chooser, Clock: clock.RealClock{}, Wiring: wiring.Wirer{Events: events.NewFakeRecorder(10)}}
}
