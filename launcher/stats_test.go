package launcher

import (
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestStatsOfARealQEMU: a real QEMU's numbers are where they belong.
func TestStatsOfARealQEMU(t *testing.T) {
	t.Parallel()
	v := launch(t)
	if err := v.call(control.CommandStats, nil, nil); err == nil || !strings.Contains(err.Error(), "waiting") {
		t.Errorf("statistics of a VM that has not been started: %v", err)
	}
	m := &v.request.Machine
	m.CPU.Cores = 2
	m.Balloon = &qemuargs.Balloon{PCI: qemuargs.PCIAddress{Bus: "pci.2"}}
	v.boot()
	// QEMU's part is left out of an answer when QEMU takes longer than statsTimeout, as on a busy machine.
	whole := func() (s control.Stats) {
		t.Helper()
		for deadline := time.Now().Add(patience); ; s = (control.Stats{}) {
			if err := v.call(control.CommandStats, nil, &s); err != nil {
				t.Fatal(err)
			}
			if len(s.VCPUs) == 2 && len(s.Disks) == 1 && s.Balloon != nil {
				return s
			}
			if time.Now().After(deadline) {
				v.Fatalf("QEMU's part of the statistics is not whole: %+v", s)
			}
		}
	}
	first, second := whole(), whole()
	t.Logf("%s", encode(t, second))
	if second.CPU == nil || second.CPU.User+second.CPU.System == 0 || second.Resident < 8<<20 || second.Resident > 1<<30 {
		t.Errorf("QEMU's process: CPU %+v, resident %d", second.CPU, second.Resident)
	}
	if o := second.Own; o == nil || o.QEMU < 4<<20 || o.QEMU > second.Resident || o.Launcher < 1<<20 ||
		o.Launcher > 1<<30 {
		t.Errorf("memory besides the guest's: %+v", o)
	}
	if len(second.VCPUs) != 2 || second.VCPUs[0].Time == 0 {
		t.Errorf("virtual CPUs: %+v", second.VCPUs)
	}
	// The BIOS reads the boot sector.
	if d := second.Disks; len(d) != 1 || d[0].Name != "root" || d[0].Read.Operations == 0 || d[0].Read.Bytes < 512 ||
		d[0].Read.Time == 0 || d[0].Write.Bytes != 0 {
		t.Errorf("disks: %+v", d)
	}
	if second.Balloon == nil || *second.Balloon != uint64(m.MemoryBytes) {
		t.Errorf("the balloon leaves the guest %v", second.Balloon)
	}
	// A guest without a balloon driver says nothing.
	if second.Guest != nil || second.NICs != nil {
		t.Errorf("guest memory %+v, network cards %+v", second.Guest, second.NICs)
	}
	if second.VCPUs[0].Time < first.VCPUs[0].Time || second.Disks[0].Read.Operations < first.Disks[0].Read.Operations {
		t.Errorf("counters went back: %+v, then %+v", first, second)
	}
	// Also while the guest's CPUs are stopped.
	if err := v.call(control.CommandPause, nil, nil); err != nil {
		t.Fatal(err)
	}
	v.expectState(control.StatePaused)
	if err := v.call(control.CommandStats, nil, &first); err != nil {
		t.Errorf("statistics of a paused VM: %v", err)
	}
}
