package resolve

import (
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestAmendKeepsTheSettledCPU: what the launcher found out of the node's features is no change of the guest's CPU, and
// a change of the spec's features is one.
func TestAmendKeepsTheSettledCPU(t *testing.T) {
	same := func(*v1.CPU) {}
	gets := func(flag string, required ...string) func(*qemuargs.CPU) {
		return func(cpu *qemuargs.CPU) { cpu.Flags[0], cpu.Required = flag, append(cpu.Required, required...) }
	}
	disabled := func(cpu *v1.CPU) { cpu.Features[0].Policy = "disable" }
	for name, c := range map[string]struct {
		settle func(*qemuargs.CPU)
		edit   func(*v1.CPU)
		want   string
	}{
		"nothing":                 {gets("aes=on"), same, ""},
		"a feature that it has":   {gets("aes=on", "aes"), same, ""},
		"a feature that it lacks": {gets("aes=off"), same, ""},
		"the spec wants another":  {gets("aes=on"), func(cpu *v1.CPU) { cpu.Features[0].Name = "avx" }, "cpu.flags"},
		"the spec wants one more": {gets("aes=on"), func(cpu *v1.CPU) {
			cpu.Features = append(cpu.Features, v1.CPUFeature{Name: "avx"})
		}, "cpu.flags"},
		"the spec wants it away":  {gets("aes=on", "aes"), disabled, "cpu.flags"},
		"away, and it lacks it":   {gets("aes=off"), disabled, ""},
		"it requires one unasked": {gets("aes=off", "ssse3"), same, "cpu.flags"},
	} {
		vmi, host := load(t, filepath.Join("testdata/machines", smallest), "11.1")
		vmi.Spec.Domain.CPU = &v1.CPU{Model: "Nehalem", Features: []v1.CPUFeature{{Name: "aes", Policy: "optional"}}}
		was, errs := Machine(vmi, host)
		if len(errs) > 0 {
			t.Fatal(errs.ToAggregate())
		}
		if len(was.CPU.Flags) == 0 || was.CPU.Flags[0] != "aes=on" {
			t.Fatalf("the CPU's flags are %v", was.CPU.Flags)
		}
		c.settle(&was.CPU)
		c.edit(vmi.Spec.Domain.CPU)
		next, errs := Amend(vmi, host, was)
		if len(errs) > 0 {
			t.Errorf("%s: %v", name, errs.ToAggregate())
			continue
		}
		_, restart := qemuargs.Become(was, next, was.Sets())
		if got := strings.Join(restart, " "); !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: %q needs a restart, want %q", name, got, c.want)
		}
	}
}
