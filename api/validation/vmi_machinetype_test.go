package validation

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestKnownMachineTypesAreValid: a VMI may have each machine type that is known, and no other of RHEL's.
func TestKnownMachineTypesAreValid(t *testing.T) {
	names := []string{}
	for _, release := range v1.RHELReleases() {
		names = append(names, v1.RHELPrefix+release)
	}
	for major := range 20 {
		for minor := range 10 {
			if name := fmt.Sprintf("pc-q35-%d.%d", major, minor); v1.KnownMachineType(name, v1.AMD64) {
				names = append(names, name)
			}
		}
	}
	if len(names) < 30 {
		t.Errorf("only %d machine types were found: %q", len(names), names)
	}
	for _, name := range names {
		if errs := validateMachineType(name, v1.AMD64, field.NewPath("type")); len(errs) > 0 {
			t.Error(errs)
		}
	}
	errs := validateMachineType("pc-q35-rhel9.9.9", v1.AMD64, field.NewPath("type"))
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "9.8.0, 10.0.0, 10.2.0") {
		t.Errorf("a release that is not known: %v", errs)
	}
	if errs := validateMachineType("pc-q35-rhel9.6.0", v1.ARM64, field.NewPath("type")); len(errs) != 1 {
		t.Errorf("a type of amd64 for a guest of arm64: %v", errs)
	}
}
