package v1

import "testing"

func TestKnownMachineType(t *testing.T) {
	for name, want := range map[string]bool{
		"pc-q35-7.2": true, "pc-q35-11.1": true, "pc-q35-5.2": true,
		"": false, "q35": false, "pc-q35-": false, "pc-q35-0.0": false, "pc-q35-7.3": false, "pc-q35-99.9": false, "pc-q35-07.2": false,
		"7.2": false, "pc-i440fx-7.2": false, "pc-q35-7.2 ": false, "pc-q35-7.2,accel=tcg": false,
	} {
		if got := KnownMachineType(name, AMD64); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
	// Validation accepts each known type in a VMI.
	for _, release := range machineReleases {
		if !machineType.MatchString("pc-q35-" + release) {
			t.Errorf("%s is known and not valid", release)
		}
	}
}

// TestMachineTypeOfOtherArchitectureIsUnknown: no guest has a machine type of another architecture. A node that reports one must not make a VM one of arm64.
func TestMachineTypeOfOtherArchitectureIsUnknown(t *testing.T) {
	for name, architecture := range map[string]string{"virt-11.1": ARM64, "virt-10.0": ARM64, "pc-q35-11.1": AMD64} {
		for _, of := range []string{AMD64, ARM64, ""} {
			if got, want := KnownMachineType(name, of), of == architecture || of == "" && architecture == AMD64; got != want {
				t.Errorf("%s for %q: %v", name, of, got)
			}
		}
	}
}
