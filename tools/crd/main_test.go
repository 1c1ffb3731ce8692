package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestShorten(t *testing.T) {
	const before = `---
metadata:
  name: others
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
	after, err := shorten([]byte(before))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.NewReplacer("          description: Kubernetes'\n", "", "            description: Kubernetes'\n", "").Replace(before)
	if !strings.HasPrefix(string(after), want) {
		t.Errorf("got\n%s\nwant\n%s", after, want)
	}
	again, err := shorten(after)
	if err != nil || string(again) != string(after) {
		t.Errorf("shortened again: %v\n%s", err, again)
	}
}

// TestTemplateSpecSaysWhereItIsExplained: a template's spec says where its fields are explained, and no field below it has
// a description. A template that is not found is an error.
func TestTemplateSpecSaysWhereItIsExplained(t *testing.T) {
	const name = "virtualmachineinstancereplicasets.kubevirt.io"
	const before = `---
metadata:
  name: ` + name + `
spec:
  versions:
  - schema:
      openAPIV3Schema:
        properties:
          spec:
            properties:
              template:
                description: ours
                properties:
                  spec:
                    description: A spec.
                    properties:
                      volumes:
                        description: ours
                        type: array
                    type: object
`
	after, err := shorten([]byte(before))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.NewReplacer("                        description: ours\n", "", "A spec.", "'A spec. "+elsewhere+"'").Replace(before)
	if string(after) != want {
		t.Errorf("got\n%s\nwant\n%s", after, want)
	}
	again, err := shorten(after)
	if err != nil || string(again) != string(after) {
		t.Errorf("shortened again: %v\n%s", err, again)
	}
	if _, err := shorten([]byte(strings.Replace(before, "template:", "pattern:", 1))); err == nil {
		t.Error("a CRD without the template is shortened")
	}
}

// domainOf is a CRD whose spec has a domain.
func domainOf(name, domain string) []byte {
	return []byte("metadata: {name: " + name + "}\nspec: {versions: [{schema: {openAPIV3Schema: {properties: {spec: {properties: {domain: " + domain + "}}}}}}]}\n")
}

// TestOnlyPresetsLoseTheirRules: of all kinds, presets alone lose their rules.
func TestOnlyPresetsLoseTheirRules(t *testing.T) {
	for name, kept := range map[string]bool{presets: false, "virtualmachines.kubevirt.io": true} {
		after, err := shorten(domainOf(name, "{description: 'Domain sets cpu. More.', items: {x-kubernetes-validations: [{rule: self}]}}"))
		if err != nil || strings.Contains(string(after), "rule: self") != kept {
			t.Errorf("%s: %v\n%s", name, err, after)
		}
	}
}

// TestWhatNoPresetSetsIsNotPromised: the fields that the documentation of a preset's domain does not name are refused,
// and nothing is said of what is in them. The others stay as they are. Documentation that does not begin with those that
// presets set is an error.
func TestWhatNoPresetSetsIsNotPromised(t *testing.T) {
	const before = "properties: {cpu: {description: CPU., type: object, properties: {cores: {type: integer}}}, clock: {description: Clock., properties: {utc: {description: UTC.}, zone: {type: string, enum: [a]}}}, " +
		"disks: {description: Disks., type: array, maxItems: 2, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name], items: {description: Disk., type: object, required: [name], properties: {name: {type: string}}}}, " +
		"size: {anyOf: [{type: string}], x-kubernetes-int-or-string: true}, gpus: {description: 'GPUs are refused: not supported yet: none.', type: object}}"
	const no = "description: 'Refused: a preset cannot set it; set it in the VirtualMachineInstance.'"
	const want = "properties: {cpu: {description: CPU., type: object, properties: {cores: {type: integer}}}, clock: {description: 'A preset sets of it: utc. Clock.', properties: {utc: {description: UTC.}, zone: {" + no + ", type: string}}}, " +
		"disks: {" + no + ", type: array, maxItems: 2, items: {type: object, x-kubernetes-preserve-unknown-fields: true}}, " +
		"size: {" + no + ", x-kubernetes-preserve-unknown-fields: true}, gpus: {description: 'GPUs are refused: not supported yet: none.', type: object}}"
	const names = "{description: \"Domain sets cpu\n  and clock.utc. Each is set as a whole.\", "
	after, err := shorten(domainOf(presets, names+before+"}"))
	if err != nil {
		t.Fatal(err)
	}
	wanted, err := shorten(domainOf("another", names+want+"}"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(after), strings.Replace(string(wanted), "another", presets, 1); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if again, err := shorten(after); err != nil || string(again) != string(after) {
		t.Errorf("shortened again: %v\n%s", err, again)
	}
	if _, err := shorten(domainOf(presets, "{description: Domain is set., "+before+"}")); err == nil {
		t.Error("a CRD that does not say what presets set is shortened")
	}
}

// TestEachCRDIsSmall: as compact JSON, a CRD takes 110 KB at most. The VMI's holds what is said of 580 fields.
func TestEachCRDIsSmall(t *testing.T) {
	const limit = 110_000
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

// TestRefusalSaysWhy: the rule of a refused field has the reason of the field's documentation, and another rule stays as it is.
func TestRefusalSaysWhy(t *testing.T) {
	const crd = "metadata: {name: x}\nschema:\n  properties:\n    later:\n      description: |-\n        Later is refused: not supported yet: there\n        is no hotplug.\n" +
		"      x-kubernetes-validations: [{message: not supported yet, rule: \"false\"}, {message: another, rule: \"true\"}]\n" +
		"    plain:\n      description: Plain.\n      x-kubernetes-validations: [{message: not supported yet, rule: \"false\"}]\n"
	after, err := shorten([]byte(crd))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int{"message: 'not supported yet: there is no hotplug'": 1, "message: another": 1, "message: not supported yet\n": 1} {
		if got := strings.Count(string(after), text); got != want {
			t.Errorf("%q stands there %d times, want %d:\n%s", text, got, want, after)
		}
	}
}
