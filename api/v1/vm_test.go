package v1

import (
	"testing"

	"k8s.io/utils/ptr"
)

func TestRunStrategyOfVM(t *testing.T) {
	for want, spec := range map[VirtualMachineRunStrategy]VirtualMachineSpec{
		RunStrategyAlways: {Running: ptr.To(true)},
		RunStrategyHalted: {Running: ptr.To(false)},
		RunStrategyManual: {RunStrategy: ptr.To(RunStrategyManual)},
	} {
		if got := (&VirtualMachine{Spec: spec}).Strategy(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if got := (&VirtualMachine{}).Strategy(); got != RunStrategyHalted {
		t.Errorf("%s of one that says nothing", got)
	}
}
