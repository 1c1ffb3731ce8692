package node

import (
	"errors"
	"slices"
	"testing"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestFailedStartIsTold: a start that fails is told in the status at once, although others are waited for.
func TestFailedStartIsTold(t *testing.T) {
	w := world{vmi: nodetest.Demanding(), launcher: &sessions.Session{}} // it has no network namespace
	s := step{serves: true, begin: beginHeld, after: time.Second}
	(&Reconciler{Starter: newStarter()}).act(t.Context(), w, &s)
	if !errors.Is(s.failure, control.ErrClosed) || s.tell != tellGuest || s.after != 0 {
		t.Errorf("%+v", s)
	}
}

// TestGuestFollowsItsVMIInOrder: a launcher is asked for one thing after the other, and only once the status is to
// say something of its guest.
func TestGuestFollowsItsVMIInOrder(t *testing.T) {
	g := newGrowing(t)
	g.vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "lan", State: v1.LinkDown}}
	s := g.session()
	state := s.State()
	g.machine = qemuargs.Machine{NICs: []qemuargs.NIC{{Name: "lan"}}, Agent: &qemuargs.Agent{}}
	state.Machine = &g.machine
	s.SetState(state)
	s.SetAgent(&control.AgentReport{PingsHeld: true})
	for _, c := range []struct {
		tell telling
		want []string
	}{
		{tellNothing, nil},
		{tellGuest, []string{lanDown, `hold-pings {"hold":false}`}},
	} {
		g.act(t.Context(), world{vmi: g.vmi, launcher: s, state: s.State()}, &step{serves: true, tell: c.tell})
		if got := g.wasAsked(); !slices.Equal(got, c.want) {
			t.Errorf("telling %q: the launcher was asked for %q, want %q", c.tell, got, c.want)
		}
	}
}
