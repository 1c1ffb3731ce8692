package v1

import (
	"testing"
)

func TestPausesGuestAgentProbes(t *testing.T) {
	for value, want := range map[string]bool{"true": true, "True": true, "1": true, "false": false, "0": false, "": false,
		"yes": false, " true": false} {
		vmi := &VirtualMachineInstance{}
		if vmi.PausesGuestAgentProbes() {
			t.Error("a VMI without annotations")
		}
		vmi.Annotations = map[string]string{PauseGuestAgentProbesAnnotation: value}
		if got := vmi.PausesGuestAgentProbes(); got != want {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
}
