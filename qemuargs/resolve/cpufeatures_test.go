package resolve

import (
	"bytes"
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

// TestFeatureOfLaterQEMU: a node's QEMU that is too old for a feature is named.
func TestFeatureOfLaterQEMU(t *testing.T) {
	cpu := &v1.CPU{Features: []v1.CPUFeature{{Name: "aes"}, {Name: "cet-ss"}}}
	_, _, errs := cpuFeatures(cpu, version{7, 2}, field.NewPath("features"), nil)
	if len(errs) != 1 || errs[0].Field != "features[1].name" || !strings.Contains(errs[0].Detail, "this node's QEMU 7.2 has no such CPU feature; QEMU 11.1 has it") {
		t.Errorf("QEMU 7.2: %v", errs)
	}
	if _, required, errs := cpuFeatures(cpu, version{11, 1}, field.NewPath("features"), nil); len(errs) > 0 || strings.Join(required, " ") != "aes cet-ss" {
		t.Errorf("QEMU 11.1: %v, %v", required, errs)
	}
}
