package resolve

import (
	"bufio"
	"bytes"
	"strings"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestCPUModels: the known models are those of the real QEMUs, and no others.
func TestCPUModels(t *testing.T) {
	missing := map[string]bool{}
	for _, name := range v1.CPUModels() {
		missing[name] = true
	}
	for _, q := range qemus(t) {
		out, err := q.command("-cpu", "help").Output()
		if err != nil {
			t.Fatalf("%s -cpu help: %v", q.path, err)
		}
		found := 0
		for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan() && !strings.HasPrefix(lines.Text(), "Recognized"); {
			// A line is "x86 Haswell-v1  ..." in 7.2, and "  Haswell-v1  ..." in 11.1.
			words := strings.Fields(strings.TrimPrefix(lines.Text(), "x86 "))
			if len(words) == 0 || words[0] == "Available" {
				continue
			}
			found++
			if !v1.KnownCPUModel(words[0]) {
				t.Errorf("QEMU %s has the model %s, which is not known", q.version, words[0])
			}
			delete(missing, words[0])
		}
		if found < 80 {
			t.Errorf("QEMU %s lists only %d models:\n%s", q.version, found, out)
		}
	}
	for name := range missing {
		t.Errorf("no QEMU here has the model %s", name)
	}
}

func TestCPUModel(t *testing.T) {
	for _, c := range []struct{ model, kvm, tcg string }{
		{"host-model", "host", "max"},
		{"host-passthrough", "host", "max"},
		{"host", "host", ""},
		{"Haswell", "Haswell", "Haswell"},
		{"Haswell-v4", "Haswell-v4", "Haswell-v4"},
		{"Haswell-v5", "", ""},
		{"Haswell-v04", "", ""},
		{"Haswell-v0", "", ""},
		{"host-v1", "", ""},
		{"haswell", "", ""},
		{"pc-q35-7.2", "", ""},
		{"-v1", "", ""},
	} {
		for accelerator, want := range map[qemuargs.Accelerator]string{qemuargs.KVM: c.kvm, qemuargs.TCG: c.tcg} {
			if got, err := cpuModel(c.model, Host{Accelerator: accelerator}); got != want || (err != nil) != (want == "") {
				t.Errorf("%s with %s: %q, %v; want %q", c.model, accelerator, got, err, want)
			}
		}
	}
}
