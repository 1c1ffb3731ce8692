package node

import (
	"errors"
	"os"
	"slices"
	"testing"

	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeqemu/kubeqemu/controllers/node/accelerator"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/internal/kvmcheck"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/netsetup"
)

// vhostDevice stands for /dev/vhost-net.
type vhostDevice struct {
	missing, breaks bool // breaks: only the first open works
	opened          []*os.File
}

func (d *vhostDevice) open(queues int) (files []*os.File, err error) {
	if d.missing || d.breaks && len(d.opened) > 0 {
		return nil, os.ErrNotExist
	}
	for range queues {
		f, err := os.Open(os.DevNull)
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	d.opened = append(d.opened, files...)
	return files, nil
}

// stillOpen counts this process's files.
func (d *vhostDevice) stillOpen() (n int) {
	for _, f := range d.opened {
		if _, err := f.Stat(); err == nil {
			n++
		}
	}
	return n
}

// TestLauncherGetsVhostNetForEachQueue: with KVM a launcher gets a file of vhost-net for each queue, where the kernel has
// vhost-net.
func TestLauncherGetsVhostNetForEachQueue(t *testing.T) {
	works, broken := kvmcheck.Result{Verdict: kvmcheck.Works}, kvmcheck.Result{Verdict: kvmcheck.Broken}
	for name, c := range map[string]struct {
		kvm    kvmcheck.Result
		device vhostDevice
		opens  int
		want   []string
		fails  bool
	}{
		"all have it":    {works, vhostDevice{}, 2, []string{"tap/default/0", "vhost/default/0", "dhcp/default"}, false},
		"another kernel": {works, vhostDevice{missing: true}, 0, []string{"tap/default/0", "dhcp/default"}, false},
		"emulation":      {broken, vhostDevice{}, 0, []string{"tap/default/0", "dhcp/default"}, false},
		"the open fails": {works, vhostDevice{breaks: true}, 1, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			launcher := n.Dial(t, "vm1")
			launcher.Send(control.EventHello, nodetest.Hello(), nodetest.NetNSFile(t, nodetest.PodNetwork(t)))
			n.Await(t)
			acceleration := accelerator.New(c.kvm)
			acceleration.PermitEmulation(true)
			r := &Reconciler{Chooser: acceleration, Clock: clock.RealClock{}, Sessions: n.sessions, Events: events.NewFakeRecorder(10), OpenVhostNet: c.device.open}
			started := make(chan error, 1)
			go func() { started <- r.start(t.Context(), demanding(), n.sessions.Get(nodetest.Pod("a")), false) }()
			last := control.CommandStart
			if c.fails {
				last = control.CommandInspect
			}
			m := answerUntil(t, launcher, last)
			if err := <-started; (err != nil) != c.fails || c.fails && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			var names []string
			for _, f := range m.Files {
				names = append(names, f.Name)
			}
			m.Close()
			if !slices.Equal(names, c.want) {
				t.Errorf("it came with the files %q, want %q", names, c.want)
			}
			if len(c.device.opened) != c.opens || c.device.stillOpen() > 0 {
				t.Errorf("vhost-net was opened %d times, want %d; %d are open", len(c.device.opened), c.opens, c.device.stillOpen())
			}
		})
	}
}

// TestVhostHandoverOfManyCardsCountsOnce: a hand-over counts once, however many cards it has files for, and not at all if
// the network could not be wired before the first.
func TestVhostHandoverOfManyCardsCountsOnce(t *testing.T) {
	vmi, device := demanding(), &vhostDevice{}
	r := &Reconciler{OpenVhostNet: device.open}
	for range vhostHandovers {
		r.wiring(vmi, "pod").close()
	}
	for n := range vhostHandovers {
		if !r.vhostCounts.left(vmi, "pod") {
			t.Fatalf("none is left after %d", n)
		}
		w := r.wiring(vmi, "pod")
		for range 2 {
			files, err := w.openVhostNet(1)
			netsetup.CloseAll(files)
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if r.vhostCounts.left(vmi, "pod") {
		t.Error("more are left")
	}
}

// TestVhostHandoversAreBounded: a launcher gets files of vhost-net a few times. Another launcher has its own count, also that of another pod
// of the same VMI.
func TestVhostHandoversAreBounded(t *testing.T) {
	vmi, h := demanding(), &vhostCounts{}
	another := vmi.DeepCopy()
	another.Name = "another"
	for n := range vhostHandovers {
		if !h.left(vmi, "first") {
			t.Fatalf("none is left after %d", n)
		}
		h.note(vmi, "first")
	}
	if h.left(vmi, "first") || !h.left(another, "another") || !h.left(vmi, "second") {
		t.Errorf("left are %v, another's %v, the next pod's %v", h.left(vmi, "first"), h.left(another, "another"), h.left(vmi, "second"))
	}
	h.note(vmi, "second")
	if !h.left(vmi, "second") || h.by[client.ObjectKeyFromObject(vmi)].times != 1 {
		t.Errorf("the VMI's next pod has %+v", h.by)
	}
	if h.forget(client.ObjectKeyFromObject(vmi)); len(h.by) > 0 {
		t.Errorf("a VMI that is gone is remembered: %v", h.by)
	}
}
