package e2e

import (
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// Go starts tests that run beside each other in the order of their files' names. TestRunStrategies takes longest, and so
// stands in one of the first files.

// strategies are what each run strategy makes of what happens: KubeVirt's table.
// Where the VM stops, it is asked to start again, if that can be asked.
var strategies = []struct {
	name     string
	strategy v1.VirtualMachineRunStrategy
	steps    []step
}{
	{"always", v1.RunStrategyAlways, []step{{created, anew}, {vm.powerOff, anew}, {vm.crash, anew}, {asksStop, anew}, {asksRestart, anew}, {halts, gone}, {enables, anew}}},
	{"rerun", v1.RunStrategyRerunOnFailure, []step{{created, anew}, {vm.crash, anew}, {vm.powerOff, gone}, {asksStart, anew}, {asksRestart, anew}, {asksStop, gone}}},
	{"manual", v1.RunStrategyManual, []step{{created, gone}, {asksStart, anew}, {asksRestart, anew}, {asksStop, gone}, {asksStart, anew}, {vm.powerOff, succeeded},
		{asksStart, anew}, {vm.crash, failed}}},
	{"once", v1.RunStrategyOnce, []step{{created, anew}, {vm.crash, failed}}},
	{"once-off", v1.RunStrategyOnce, []step{{created, anew}, {vm.powerOff, succeeded}, {halts, gone}}},
	{"halted", v1.RunStrategyHalted, []step{{created, gone}, {asksStart, anew}, {halts, gone}}},
}

// TestRunStrategies: a VM of each run strategy does what KubeVirt's does, whatever happens to its guest. Its guest is deleted
// with the VM. kubectl get --watch shows KubeVirt's words meanwhile.
func TestRunStrategies(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	vms := startTranscript(t, "watch of VMs", "kubectl", "-n", ns, "get", "vm", "--watch")
	vmis := startTranscript(t, "watch of VMIs", "kubectl", "-n", ns, "get", "vmi", "--watch")
	t.Run("each", func(t *testing.T) {
		for _, c := range strategies {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				m := createVM(t, ns, c.name, c.strategy, bootsKernel)
				cascade := "--cascade=background"
				if c.strategy == v1.RunStrategyAlways {
					cascade = "--cascade=foreground"
					m.livesLong(c.steps)
				} else {
					m.lives("", c.steps)
				}
				kubectl(t, "-n", ns, "delete", "vm", m.name, cascade, "--timeout=600s")
				if uid := m.uid(); uid != "" {
					t.Errorf("VM %s is gone, and its VMI %s is there", m.name, uid)
				}
			})
		}
	})
	const age, ready = `\s+\S+\s+`, `\s+(True|False)`
	showsInOrder(vms, `NAME\s+AGE\s+STATUS\s+READY`, `always`+age+`Starting`, `always`+age+`Running\s+True`, `always`+age+`Stopping`, `always`+age+`Stopped\s+False`,
		`always`+age+`Running\s+True`, `always`+age+`Terminating`)
	showsInOrder(vmis, `NAME\s+AGE\s+PHASE\s+IP\s+NODENAME\s+READY`, `manual`+age+`Scheduling`,
		`manual`+age+`Running\s+[0-9.]+\s+node-1\s+True`, `manual`+age+`Succeeded\s+[0-9.]+\s+node-1`+ready, `manual`+age+`Failed\s+[0-9.]+\s+node-1`+ready)
}
