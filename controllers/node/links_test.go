package node

import (
	"slices"
	"testing"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestLinksAreSetAndReported: the launcher is asked for the links that are not as the spec says, and the status says
// what they are.
func TestLinksAreSetAndReported(t *testing.T) {
	g := newGrowing(t)
	s := g.session()
	machine := func(down ...string) *qemuargs.Machine {
		m := &qemuargs.Machine{}
		for _, name := range []string{"own", "lan"} {
			m.NICs = append(m.NICs, qemuargs.NIC{Name: name, Down: slices.Contains(down, name)})
		}
		return m
	}
	steps := func(name string, own, lan v1.InterfaceState, m *qemuargs.Machine, again time.Duration, asked ...string) {
		t.Helper()
		g.vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "own", State: own}, {Name: "lan", State: lan}}
		s.SetState(control.StateReport{State: control.StateRunning, StartedAt: &g.now, Machine: m})
		wait := g.setLinks(t.Context(), g.vmi, s)
		var got []string
		for len(g.asked) > 0 {
			got = append(got, <-g.asked)
		}
		if !slices.Equal(got, asked) || wait != again {
			t.Errorf("%s: asked %q, again after %v, want %q", name, got, wait, asked)
		}
	}
	const ownDown, lanUp = `set-link {"nic":"own","down":true}`, `set-link {"nic":"lan"}`
	steps("as it is", "", v1.LinkDown, machine("lan"), 0)
	steps("both", v1.LinkDown, v1.LinkUp, machine("lan"), 0, ownDown, lanUp)
	card := machine("lan")
	card.NICs[0].HostDevice = "0000:3b:02.1"
	steps("a card of the node", v1.LinkDown, v1.LinkUp, card, 0, lanUp)
	steps("a Machine without the cards", v1.LinkDown, "", &qemuargs.Machine{}, 0)
	if is, no := linkState(s, "own"), linkState(s, "none"); is != "" || no != "" {
		t.Errorf("states %q and %q", is, no)
	}
	steps("none", "", "", machine("lan"), 0, lanUp)
	if up, down := linkState(s, "own"), linkState(s, "lan"); up != v1.LinkUp || down != v1.LinkDown {
		t.Errorf("states %q and %q", up, down)
	}
	s.Client.Close()
	steps("a launcher that is gone", v1.LinkDown, "", machine(), linkPatience)
}
