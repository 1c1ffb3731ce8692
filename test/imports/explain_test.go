package imports

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// schema is what is looked at of an OpenAPI schema.
type schema struct {
	Description string            `json:"description"`
	Properties  map[string]schema `json:"properties"`
	Items       *schema           `json:"items"`
}

// TestKubectlExplainsEveryField: kubectl explain has something to say of every field.
func TestKubectlExplainsEveryField(t *testing.T) {
	files, err := filepath.Glob("../../config/crd/*kubevirt.io_*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("find the CRDs: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd struct {
			Spec struct {
				Versions []struct {
					Schema struct {
						OpenAPIV3Schema schema `json:"openAPIV3Schema"`
					} `json:"schema"`
				} `json:"versions"`
			} `json:"spec"`
		}
		if err := yaml.Unmarshal(text, &crd); err != nil {
			t.Fatal(err)
		}
		if len(crd.Spec.Versions) == 0 {
			t.Errorf("%s has no version", file)
		}
		for _, version := range crd.Spec.Versions {
			explained(t, filepath.Base(file)+": ", version.Schema.OpenAPIV3Schema)
		}
	}
}

// explained looks at the fields of an object, or of a list's items.
func explained(t *testing.T, path string, s schema) {
	t.Helper()
	if s.Items != nil {
		explained(t, path+"[]", *s.Items)
	}
	for name, field := range s.Properties {
		// An object's own metadata is Kubernetes'.
		if field.Description == "" && name != "metadata" {
			t.Errorf("%s.%s has no description", path, name)
		}
		want := elsewhere(path + "." + name)
		if want == "" {
			explained(t, path+"."+name, field)
		} else if !strings.Contains(strings.Join(strings.Fields(field.Description), " "), want) {
			t.Errorf("%s.%s does not say %q", path, name, want)
		}
	}
}

// elsewhere is the command that explains what is below a field, if the CRD does not; tools/crd
// has why.
func elsewhere(path string) string {
	for _, field := range []string{"affinity", "dnsConfig", "tolerations", "topologySpreadConstraints"} {
		if strings.HasSuffix(path, "."+field) {
			return "kubectl explain pod.spec." + field
		}
	}
	switch {
	case path == "kubevirt.io_virtualmachineinstancereplicasets.yaml: .spec.template.spec",
		path == "pool.kubevirt.io_virtualmachinepools.yaml: .spec.virtualMachineTemplate.spec.template.spec":
		return "kubectl explain vmi.spec"
	}
	return ""
}
