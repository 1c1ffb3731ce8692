package v1

import (
	"testing"
)

func TestKnownMachineType(t *testing.T) {
	for name, want := range map[string]bool{
		"pc-q35-7.2": true, "pc-q35-11.1": true, "pc-q35-5.2": true,
		"": false, "q35": false, "pc-q35-": false, "pc-q35-0.0": false, "pc-q35-7.3": false, "pc-q35-99.9": false,
		"pc-q35-07.2": false,
		"7.2":         false, "pc-i440fx-7.2": false, "pc-q35-7.2 ": false, "pc-q35-7.2,accel=tcg": false,
	} {
		if got := KnownMachineType(name, AMD64); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}

// TestMachineTypeOfOtherArchitectureIsUnknown: no guest has a machine type of another architecture. A node that reports
// one must not make a VM one of arm64.
func TestMachineTypeOfOtherArchitectureIsUnknown(t *testing.T) {
	for name, architecture := range map[string]string{"virt-11.1": ARM64, "virt-10.0": ARM64, "pc-q35-11.1": AMD64} {
		for _, of := range []string{AMD64, ARM64, ""} {
			if got, want := KnownMachineType(name, of), of == architecture || of == "" && architecture == AMD64; got != want {
				t.Errorf("%s for %q: %v", name, of, got)
			}
		}
	}
}

// TestUpstreamMachineType: one of RHEL's types, or one that no QEMU has any more, stands for one that the launcher's
// QEMU has.
func TestUpstreamMachineType(t *testing.T) {
	for name, want := range map[string]string{
		"pc-q35-rhel9.6.0": "pc-q35-9.1", "pc-q35-rhel8.6.0": "pc-q35-6.2", "pc-q35-rhel8.2.0": "pc-q35-5.2",
		"pc-q35-rhel7.6.0": "pc-q35-5.2",
		"pc-q35-4.2":       "pc-q35-5.2", "pc-q35-5.2": "pc-q35-5.2", "pc-q35-10.0": "pc-q35-10.0",
		"pc-q35-99.0": "pc-q35-99.0",
		"virt-4.2":    "virt-5.2", "virt-10.0": "virt-10.0",
		"q35": "q35", "virt": "virt", "": "", "pc-q35-rhel": "pc-q35-rhel", "pc-q35-rhel9.9.9": "pc-q35-rhel9.9.9",
		"pc-q35-": "pc-q35-", "pc-i440fx-4.2": "pc-i440fx-4.2", "pc-q35-0.0": "pc-q35-0.0", "pc-q35-1.7": "pc-q35-1.7",
	} {
		if got := UpstreamMachineType(name); got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
	for release := range rhelReleases {
		name := RHELPrefix + release
		if upstream := UpstreamMachineType(name); !KnownMachineType(upstream, AMD64) {
			t.Errorf("%s is %s, which no QEMU has", name, upstream)
		}
	}
}
