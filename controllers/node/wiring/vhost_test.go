package wiring

import (
	"os"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/netsetup"
)

// TestVhostHandoverOfManyCardsCountsOnce: a hand-over counts once, however many cards it has files for, and not at
// all if the network could not be wired before the first.
func TestVhostHandoverOfManyCardsCountsOnce(t *testing.T) {
	vmi := nodetest.Demanding()
	wirer := &Wirer{OpenVhostNet: func(int) ([]*os.File, error) {
		f, err := os.Open(os.DevNull)
		return []*os.File{f}, err
	}}
	for range vhostHandovers {
		wirer.wires(vmi, "pod").Close()
	}
	for n := range vhostHandovers {
		if !wirer.vhostCounts.left(vmi, "pod") {
			t.Fatalf("none is left after %d", n)
		}
		w := wirer.wires(vmi, "pod")
		for range 2 {
			files, err := w.openVhostNet(1)
			netsetup.CloseAll(files)
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if wirer.vhostCounts.left(vmi, "pod") {
		t.Error("more are left")
	}
}

// TestVhostHandoversAreBounded: a launcher gets files of vhost-net a few times. Another launcher has its own count,
// also that of another pod of the same VMI.
func TestVhostHandoversAreBounded(t *testing.T) {
	vmi, h := nodetest.Demanding(), &vhostCounts{}
	another := vmi.DeepCopy()
	another.Name = "another"
	for n := range vhostHandovers {
		if !h.left(vmi, "first") {
			t.Fatalf("none is left after %d", n)
		}
		h.note(vmi, "first")
	}
	if h.left(vmi, "first") || !h.left(another, "another") || !h.left(vmi, "second") {
		t.Errorf("left are %v, another's %v, the next pod's %v", h.left(vmi, "first"), h.left(another, "another"),
			h.left(vmi, "second"))
	}
	h.note(vmi, "second")
	if !h.left(vmi, "second") || h.by[client.ObjectKeyFromObject(vmi)].times != 1 {
		t.Errorf("the VMI's next pod has %+v", h.by)
	}
	if h.forget(client.ObjectKeyFromObject(vmi)); len(h.by) > 0 {
		t.Errorf("a VMI that is gone is remembered: %v", h.by)
	}
}
