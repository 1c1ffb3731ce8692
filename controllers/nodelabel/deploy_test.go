package nodelabel

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestDeployRemovesLabels: config/deploy.sh down removes our labels of CPUs and no others, and goes on where there are none.
func TestDeployRemovesLabels(t *testing.T) {
	script, err := os.ReadFile("../../config/deploy.sh")
	if err != nil {
		t.Fatal(err)
	}
	function := regexp.MustCompile(`(?ms)^cpu_labels\(\) \{.*?^\}`).FindString(string(script))
	if function == "" {
		t.Fatal("config/deploy.sh has no function cpu_labels")
	}
	removed := func(labels string) string {
		cmd := exec.Command("bash", "-c", "set -euo pipefail\n"+function+"\nlabels=$(cpu_labels)\necho $labels reached")
		cmd.Stdin = strings.NewReader(labels)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("of %s: %v", labels, err)
		}
		return string(out)
	}
	if got := removed(`{"kubevirt.io/schedulable":"true"}`); got != "reached\n" {
		t.Errorf("without labels of CPUs: %q", got)
	}
	all := `{"machine-type.node.kubevirt.io/q35":"true"`
	for _, prefix := range v1.CPULabels() {
		all += `,"` + prefix + `x_1.2":"true"`
	}
	got := removed(all + "}")
	for _, prefix := range v1.CPULabels() {
		if !strings.Contains(got, prefix+"x_1.2- ") {
			t.Errorf("%sx_1.2 stays: %s", prefix, got)
		}
	}
	if strings.Contains(got, "machine-type") {
		t.Errorf("others' labels go: %s", got)
	}
}
