package launcher

import (
	"context"
	"fmt"
	"slices"

	"github.com/kubeqemu/kubeqemu/launcher/pinning"
	"github.com/kubeqemu/kubeqemu/launcher/process"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// dedicate decides where the threads of a guest with dedicated CPUs run. The launcher itself makes room for the guest
// before QEMU starts.
func (l *launcher) dedicate() (*pinning.Plan, error) {
	asked := l.start.DedicatedCPUs
	if asked == nil {
		return nil, nil
	}
	cpus, err := l.ownCPUs()
	if err != nil {
		return nil, err
	}
	plan, err := pinning.New(l.start.Machine.CPU.Count(), asked.IsolateEmulator, cpus)
	if err != nil {
		return nil, err
	}
	l.Log.Info("dedicated CPUs", "guest", plan.VCPUs, "others", plan.Others)
	l.changeMachine(func(m *qemuargs.Machine) { m.NUMA = takenNear(m.NUMA, plan) })
	if l.PID == 0 {
		return plan, nil
	}
	return plan, pinning.PlaceAll(l.PID, plan.Others, nil)
}

// takenNear returns the nodes, each with the CPUs on which QEMU takes its pages: the node's own. A guest that comes
// from another host brings that host's CPUs along.
func takenNear(nodes []qemuargs.NUMANode, plan *pinning.Plan) []qemuargs.NUMANode {
	nodes = slices.Clone(nodes)
	for i := range nodes {
		nodes[i].TakenOn = plan.Near(nodes[i].FirstCPU, nodes[i].CPUs)
	}
	return nodes
}

// startQEMU starts QEMU on all of the guest's CPUs: QEMU takes huge pages before the guest runs, with as many threads
// as the guest has CPUs. Once it answers, pin gives its threads their places.
func (l *launcher) startQEMU() (q *process.QEMU, err error) {
	start := func() error {
		q, err = process.StartQEMU(l.program(), &l.start.Machine, l.start.Incoming, l.files, l.stderr)
		return err
	}
	if l.cpus == nil {
		err = start()
		return q, err
	}
	if err = pinning.On(l.cpus.All(), start); err != nil && q != nil {
		q.End()
	}
	return q, err
}

// ownCPUs returns the CPUs that the launcher may run on.
func (l *launcher) ownCPUs() ([]pinning.CPU, error) {
	if l.HostCPUs != nil {
		return l.HostCPUs()
	}
	return pinning.Own()
}

// pin places the threads of a QEMU whose guest does not run yet.
func pin(ctx context.Context, client *qmp.Client, plan *pinning.Plan, pid int) error {
	cpus, err := client.QueryCPUsFast(ctx)
	if err != nil {
		return fmt.Errorf("ask for the threads of the guest's CPUs: %w", err)
	}
	guests := map[int]bool{}
	for _, c := range cpus {
		if c.Index < 0 || c.Index >= len(plan.VCPUs) {
			return fmt.Errorf("QEMU has CPU %d, and CPUs of the node are there for %d", c.Index, len(plan.VCPUs))
		}
		if err := pinning.Place(c.ThreadID, plan.VCPUs[c.Index:c.Index+1]); err != nil {
			return err
		}
		guests[c.ThreadID] = true
	}
	if len(guests) != len(plan.VCPUs) {
		return fmt.Errorf("QEMU has %d threads for the guest's %d CPUs", len(guests), len(plan.VCPUs))
	}
	return pinning.PlaceAll(pid, plan.Others, guests)
}
