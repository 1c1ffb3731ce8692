package launcher

import (
	"context"
	"fmt"
	"os"

	"github.com/kubeqemu/kubeqemu/launcher/pinning"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
)

// dedicate decides where the threads of a guest with dedicated CPUs run. In its pod the launcher itself makes room for the guest before
// QEMU starts: QEMU's threads begin where the launcher's are.
func (l *launcher) dedicate() (*pinning.Plan, error) {
	asked := l.start.DedicatedCPUs
	if asked == nil {
		return nil, nil
	}
	own := l.HostCPUs
	if own == nil {
		own = pinning.Own
	}
	cpus, err := own()
	if err != nil {
		return nil, err
	}
	plan, err := pinning.New(l.start.Machine.CPU.Count(), asked.IsolateEmulator, cpus)
	if err != nil {
		return nil, err
	}
	l.Log.Info("dedicated CPUs", "guest", plan.VCPUs, "others", plan.Others)
	if os.Getpid() != 1 {
		return plan, nil // a test's process is not the launcher's alone
	}
	return plan, pinning.PlaceAll(os.Getpid(), plan.Others, nil)
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
