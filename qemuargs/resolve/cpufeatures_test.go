package resolve

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestCPUFeaturesAreQEMUs: the known features of each release are those that its QEMU lists.
func TestCPUFeaturesAreQEMUs(t *testing.T) {
	for _, q := range qemus(t) {
		out, err := q.command("-cpu", "help").Output()
		if err != nil {
			t.Fatalf("%s -cpu help: %v", q.path, err)
		}
		_, list, ok := bytes.Cut(out, []byte("Recognized CPUID flags:"))
		if !ok {
			t.Fatalf("QEMU %s lists no features", q.version)
		}
		qemu, err := release(q.version)
		if err != nil {
			t.Fatal(err)
		}
		missing := map[string]bool{}
		for _, names := range []string{cpuFeatures72, cpuFeatures100, cpuFeatures111} {
			for name := range strings.FieldsSeq(names) {
				if since, _ := featureSince(name); !qemu.before(since) {
					missing[name] = true
				}
			}
		}
		for _, name := range strings.Fields(string(list)) { // some stand there twice
			if since, ok := featureSince(name); !ok || qemu.before(since) {
				t.Errorf("QEMU %s has the feature %s, which is not known of it", q.version, name)
			}
			delete(missing, name)
		}
		for name := range missing {
			t.Errorf("QEMU %s has no feature %s", q.version, name)
		}
	}
}

// TestOtherNamesAreQEMUs: QEMU has the further names of CPU features, and each is the name that is handed to QEMU.
func TestOtherNamesAreQEMUs(t *testing.T) {
	others := []string{"sse3", "pclmuldq", "sse4-1", "sse4_1", "sse4-2", "sse4_2", "xd", "ffxsr", "i64", "lahf_lm"}
	for _, q := range qemus(t) {
		for _, state := range []string{"on", "off"} {
			model, asked := "max", `{"execute":"qmp_capabilities"}`
			for _, other := range others {
				model += "," + other + "=" + state
				asked += fmt.Sprintf(`{"execute":"qom-get","arguments":{"path":"/machine/unattached/device[0]","property":%q},"id":%q}`, v1.CPUFeature{Name: other}.QEMUName(), other)
			}
			cmd := q.command("-S", "-nodefaults", "-display", "none", "-accel", "tcg", "-cpu", model, "-qmp", "stdio")
			cmd.Stdin = strings.NewReader(asked + `{"execute":"quit"}`)
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("QEMU %s: %v\n%s", q.version, err, out)
			}
			for _, other := range others {
				if want := fmt.Sprintf(`{"return": %v, "id": %q}`, state == "on", other); !strings.Contains(string(out), want) && other != "ffxsr" {
					t.Errorf("QEMU %s, %s=%s: not %s in\n%s", q.version, other, state, want, out)
				}
			}
		}
	}
}

// TestFeatureOfLaterQEMU: a node's QEMU that is too old for a feature is named.
func TestFeatureOfLaterQEMU(t *testing.T) {
	cpu := &v1.CPU{Features: []v1.CPUFeature{{Name: "aes"}, {Name: "cet-ss"}}}
	_, _, errs := cpuFeatures(cpu, "", version{7, 2}, field.NewPath("features"))
	if len(errs) != 1 || errs[0].Field != "features[1].name" || !strings.Contains(errs[0].Detail, "this node's QEMU 7.2 has no such CPU feature; QEMU 11.1 has it") {
		t.Errorf("QEMU 7.2: %v", errs)
	}
	if _, required, errs := cpuFeatures(cpu, "", version{11, 1}, field.NewPath("features")); len(errs) > 0 || strings.Join(required, " ") != "aes cet-ss" {
		t.Errorf("QEMU 11.1: %v, %v", required, errs)
	}
}
