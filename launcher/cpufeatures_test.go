package launcher

import (
	"slices"
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// TestOptionalCPUFeaturesStayAsTheyAre: the features that the guest has got are required wherever it goes, and those
// that it has not got stay off. QEMU cannot emulate vmx.
func TestOptionalCPUFeaturesStayAsTheyAre(t *testing.T) {
	t.Parallel()
	v := launch(t)
	cpu := &v.request.Machine.CPU
	cpu.Model, cpu.Flags, cpu.Required = "qemu64", []string{"pclmulqdq=on", "vmx=on", "popcnt=off", "aes=on"},
		[]string{"aes"}
	got := v.boot().Machine.CPU
	if want := []string{"pclmulqdq=on", "vmx=off", "popcnt=off", "aes=on"}; !slices.Equal(got.Flags, want) {
		t.Errorf("flags %q, want %q", got.Flags, want)
	}
	if want := []string{"aes", "pclmulqdq"}; !slices.Equal(got.Required, want) {
		t.Errorf("required are %q, want %q", got.Required, want)
	}
}

// TestHostsOwnCPUFeaturesAreRequiredLater: what QEMU gives of a node's own CPU is required wherever the guest goes,
// and what it does not give stays off.
func TestHostsOwnCPUFeaturesAreRequiredLater(t *testing.T) {
	for name, c := range map[string]struct {
		asked, flags, required []string
	}{
		"all": {[]string{"apic=on", "aes=on", "family=6"}, []string{"apic=on", "aes=on", "family=6"},
			[]string{"apic", "aes"}},
		"all but vmx": {[]string{"apic=on", "vmx=on"}, []string{"apic=on", "vmx=off"}, []string{"apic"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := launch(t)
			cpu := &v.request.Machine.CPU
			cpu.Model, cpu.Flags = "base", c.asked
			got := v.boot().Machine.CPU
			if !slices.Equal(got.Flags, c.flags) || !slices.Equal(got.Required, c.required) {
				t.Errorf("flags %q and required %q, want %q and %q", got.Flags, got.Required, c.flags, c.required)
			}
		})
	}
}

// TestGuestWithoutRequiredFeatureDoesNotRun: a guest whose CPU lacks a required feature does not run, and is not
// received.
func TestGuestWithoutRequiredFeatureDoesNotRun(t *testing.T) {
	for name, c := range map[string]struct {
		incoming bool
		says     string
	}{
		"start":  {false, `the CPU feature "vmx", which spec.domain.cpu.features requires; the policy optional starts the guest without`},
		"target": {true, `the CPU feature "vmx", which the guest has`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := launch(t)
			v.request.Incoming = c.incoming
			v.request.Machine.CPU.Flags, v.request.Machine.CPU.Required = []string{"vmx=on"}, []string{"vmx"}
			v.must(v.call(control.CommandStart, v.request, nil))
			v.expectEnd(control.ReasonStartFailed, c.says)
		})
	}
}
