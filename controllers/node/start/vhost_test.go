package start

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/internal/kvmcheck"
	"github.com/kubeqemu/kubeqemu/launcher/control"
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

// TestLauncherGetsVhostNetForEachQueue: with KVM a launcher gets a file of vhost-net for each queue, where the kernel
// has vhost-net.
func TestLauncherGetsVhostNetForEachQueue(t *testing.T) {
	works, broken := kvmcheck.Result{Verdict: kvmcheck.Works}, nodetest.Broken()
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
			s := newStarter(c.kvm)
			s.Wiring.OpenVhostNet = c.device.open
			started := make(chan error, 1)
			go func() {
				started <- s.Start(t.Context(), nodetest.Demanding(), n.sessions.Get(nodetest.Pod("a")), false)
			}()
			last := control.CommandStart
			if c.fails {
				last = control.CommandInspect
			}
			m := launcher.AnswerUntil(last)
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
