package node

import (
	"fmt"
	"math"
	"testing"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// These tests are of launchers that lie, and of tenants that never stop. A launcher is its tenant's: it harms its own
// guest only, and costs virt-handler no more than others do.

// hasLan gives the guest the interface lan, and the spec a state of its link.
func (g *growing) hasLan(state v1.InterfaceState) {
	g.machine.NICs = []qemuargs.NIC{{Name: "lan"}}
	g.vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "lan", State: state}}
}

// TestMachineThatWasNeverGiven: a launcher reports a Machine that virt-handler never gave it. virt-handler asks for
// what the VMI wants of the parts that it knows by name, each once, and for nothing else.
func TestMachineThatWasNeverGiven(t *testing.T) {
	many := qemuargs.Machine{}
	for i := range 5000 {
		many.Disks = append(many.Disks, qemuargs.Disk{Name: fmt.Sprintf("other-%d", i), Image: qemuargs.Image{Size: 1}})
		many.NICs = append(many.NICs, qemuargs.NIC{Name: fmt.Sprintf("other-%d", i)})
	}
	same := qemuargs.Machine{}
	for range 5000 {
		same.Disks = append(same.Disks, qemuargs.Disk{Name: "data"})
		same.NICs = append(same.NICs, qemuargs.NIC{Name: "lan"})
	}
	size := func(bytes int64) qemuargs.Machine {
		return qemuargs.Machine{Disks: []qemuargs.Disk{{Name: "data", Image: qemuargs.Image{Size: bytes}}}}
	}
	for name, c := range map[string]struct {
		machine qemuargs.Machine
		asks    bool
	}{
		"nothing in it":         {qemuargs.Machine{}, false},
		"thousands of others":   {many, false},
		"thousands of one name": {same, true},
		"a size below nothing":  {size(math.MinInt64), true},
		"the greatest size":     {size(math.MaxInt64), false},
		"a card of the node's own": {qemuargs.Machine{
			NICs: []qemuargs.NIC{{Name: "lan", HostDevice: "0000:00:00.0"}}}, false},
		"another guest's identity": {qemuargs.Machine{Name: "other_vm", UUID: "other"}, false},
	} {
		g := newGrowing(t)
		g.hasLan(v1.LinkDown)
		s := g.session()
		machine := c.machine
		s.SetState(control.StateReport{State: control.StateRunning, StartedAt: &g.now, Machine: &machine})
		for range 3 {
			g.followSpec(t.Context(), g.vmi, s)
		}
		asked := 0
		for len(g.asked) > 0 {
			<-g.asked
			asked++
		}
		if wishes := 2; (asked > 0) != c.asks || asked > wishes {
			t.Errorf("%s: in three turns the launcher was asked %d times", name, asked)
		}
	}
}

// TestLauncherDoesOtherThanItWasAsked: a launcher says that its job is done, and reports other sizes, other links or
// other disks. virt-handler has asked, and does not ask again until the VMI wants something else.
func TestLauncherDoesOtherThanItWasAsked(t *testing.T) {
	for name, machine := range map[string]*qemuargs.Machine{
		"the old size":      {Disks: []qemuargs.Disk{{Name: "data"}}},
		"a smaller size":    {Disks: []qemuargs.Disk{{Name: "data", Image: qemuargs.Image{Size: -5}}}},
		"another disk":      {Disks: []qemuargs.Disk{{Name: "other"}}},
		"one disk more":     {Disks: []qemuargs.Disk{{Name: "data"}, {Name: "data"}, {Name: "more"}}},
		"another place":     {Disks: []qemuargs.Disk{{Name: "data", PCI: &qemuargs.PCIAddress{Slot: 31}}}},
		"no Machine at all": nil,
	} {
		g := newGrowing(t)
		s := g.session()
		g.want(s, 0, askGrow)
		for turn := range 5 {
			s.SetState(control.StateReport{State: control.StateRunning, StartedAt: &g.now, Machine: machine,
				Jobs: []control.Job{becomeJob(1, control.JobDone)}})
			g.followSpec(t.Context(), g.vmi, s)
			for _, asked := range g.wasAsked() {
				if asked != forgetJob1 {
					t.Errorf("%s, turn %d: the launcher was asked %s", name, turn, asked)
				}
			}
			g.clock.Step(time.Hour)
		}
	}
}

// TestJobThatNeverEnds: virt-handler waits for the launcher's report, and does nothing for it meanwhile.
func TestJobThatNeverEnds(t *testing.T) {
	g := newGrowing(t)
	g.hasLan(v1.LinkDown)
	s := g.session()
	g.want(s, 0, lanDown)
	for range 100 {
		g.report(s, 0, becomeJob(1, control.JobRunning))
		g.clock.Step(time.Hour)
		g.want(s, 0)
	}
	// A job that virt-handler has not begun holds up the launcher's own guest just as well.
	g.report(s, 0, becomeJob(math.MaxUint64, control.JobRunning))
	g.want(s, linkPatience)
}

// TestSpecThatChangesWhileAJobRuns: when the job has ended, virt-handler asks for what the spec says then, and for
// nothing that the spec said meanwhile.
func TestSpecThatChangesWhileAJobRuns(t *testing.T) {
	g := newGrowing(t)
	g.hasLan(v1.LinkDown)
	s := g.session()
	g.want(s, 0, lanDown)
	g.report(s, claimSize, becomeJob(1, control.JobRunning))
	for _, state := range []v1.InterfaceState{v1.LinkUp, v1.LinkDown, v1.LinkUp} {
		g.vmi.Spec.Domain.Devices.Interfaces[0].State = state
		g.want(s, 0)
	}
	g.machine.NICs[0].Down = true
	g.report(s, claimSize, becomeJob(1, control.JobDone))
	g.want(s, 0, forgetJob1, lanUp)
	g.machine.NICs[0].Down = false
	g.report(s, claimSize, becomeJob(2, control.JobDone))
	g.want(s, 0, forgetJob2)
	// An interface that goes from the spec meanwhile is nobody's wish.
	g.vmi.Spec.Domain.Devices.Interfaces[0].State = v1.LinkDown
	g.want(s, 0, lanDown)
	g.vmi.Spec.Domain.Devices.Interfaces = nil
	g.report(s, claimSize, becomeJob(3, control.JobFailed))
	g.want(s, 0, `forget-job {"id":3}`)
}

// TestManyPatchesAreFewJobs: 10,000 changes of a spec are as many jobs as the launcher has ended, and one.
func TestManyPatchesAreFewJobs(t *testing.T) {
	g := newGrowing(t)
	g.hasLan("")
	s := g.session()
	g.report(s, claimSize)
	asked, ended := 0, 0
	running := false
	for i := range 10_000 {
		state := v1.LinkUp
		if i%2 == 0 {
			state = v1.LinkDown
		}
		g.vmi.Spec.Domain.Devices.Interfaces[0].State = state
		if i%1000 == 999 && running {
			ended++
			g.machine.NICs[0].Down = !g.machine.NICs[0].Down
			g.report(s, claimSize, becomeJob(uint64(ended), control.JobDone))
			running = false
		}
		g.followSpec(t.Context(), g.vmi, s)
		for _, what := range g.wasAsked() {
			if what == lanDown || what == lanUp {
				asked++
				running = true
				g.report(s, claimSize, becomeJob(uint64(ended+1), control.JobRunning))
			}
		}
	}
	if ended < 5 || asked > ended+1 {
		t.Errorf("the launcher was asked %d times, and has ended %d jobs", asked, ended)
	}
}

// TestLauncherListsJobsWithoutEnd: jobs that no wish waits for are forgotten, each once, and cost no more than a
// launcher may list.
func TestLauncherListsJobsWithoutEnd(t *testing.T) {
	g := newGrowing(t)
	s := g.session()
	var jobs []control.Job
	for i := range 50 {
		jobs = append(jobs, becomeJob(uint64(i+1), control.JobDone))
	}
	g.report(s, claimSize, jobs...)
	g.followSpec(t.Context(), g.vmi, s)
	if got := len(g.wasAsked()); got != len(jobs) {
		t.Errorf("%d calls for %d jobs", got, len(jobs))
	}
	g.followSpec(t.Context(), g.vmi, s)
	if got := g.wasAsked(); len(got) != 0 {
		t.Errorf("once more, the launcher was asked %q", got)
	}
}
