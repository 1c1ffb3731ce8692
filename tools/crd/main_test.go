package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestShorten(t *testing.T) {
	const before = `---
schema:
  properties:
    affinity:
      description: ours
      properties:
        description:
          description: Kubernetes'
          type: string
        terms:
          description: Kubernetes'
          items:
            description: Kubernetes'
            type: string
          type: array
      type: object
    disks:
      description: ours
      properties:
        name:
          description: ours
          type: string
`
	after, err := changed([]byte(before))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.NewReplacer("          description: Kubernetes'\n", "", "            description: Kubernetes'\n", "").Replace(before)
	if !strings.HasPrefix(string(after), want) {
		t.Errorf("got\n%s\nwant\n%s", after, want)
	}
	again, err := changed(after)
	if err != nil || string(again) != string(after) {
		t.Errorf("shortened again: %v\n%s", err, again)
	}
}

func TestOlderVersions(t *testing.T) {
	const stored = `  - additionalPrinterColumns:
    - jsonPath: .status.phase
      name: Phase
      type: string
    name: %s
    schema:
      openAPIV3Schema:
%s
    served: %v
    storage: %v
    subresources:
      status: {}
`
	v1 := fmt.Sprintf(stored, "v1", "        properties:\n          spec:\n            type: object\n        type: object", true, true)
	v1alpha3 := fmt.Sprintf(stored, "v1alpha3", `        description: The fields are those of v1. virt-api checks them.
        type: object
        x-kubernetes-preserve-unknown-fields: true`, false, false)
	for group, want := range map[string]string{"kubevirt.io": v1 + v1alpha3, "instancetype.kubevirt.io": v1} {
		head := "---\nspec:\n  group: " + group + "\n  versions:\n"
		for _, before := range []string{head + v1, head + want} {
			if after, err := changed([]byte(before)); err != nil || string(after) != head+want {
				t.Errorf("%s: %v\n%s\nwant\n%s", group, err, after, head+want)
			}
		}
	}
	deprecated := strings.Replace("---\nspec:\n  group: kubevirt.io\n  versions:\n"+v1, "    name: v1", "    deprecated: true\n    name: v1", 1)
	if after, err := changed([]byte(deprecated)); err != nil || string(after) != deprecated {
		t.Errorf("a deprecated kind: %v\n%s", err, after)
	}
	for _, spec := range []string{"{group: kubevirt.io}", "{group: kubevirt.io, versions: [{name: v1}]}"} {
		if _, err := changed([]byte("spec: " + spec)); err == nil {
			t.Errorf("%s has older versions", spec)
		}
	}
}

// TestSizes: as compact JSON, a CRD takes 100 KB at most.
func TestSizes(t *testing.T) {
	const limit = 100_000
	files, err := filepath.Glob(filepath.Join("..", "..", "config", "crd", "*_*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d CRDs: %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		compact, err := yaml.YAMLToJSON(text)
		if err != nil {
			t.Fatal(err)
		}
		if len(compact) > limit {
			t.Errorf("%s: %d bytes of JSON, %d are allowed", filepath.Base(file), len(compact), limit)
		}
	}
}
