// Command crd adds the older versions to the CustomResourceDefinitions in a folder, and removes
// the documentation of Kubernetes' own types from them:
//
//	crd config/crd
//
// An older version has the fields of the version that is stored. But the API server would keep a
// schema of it in memory too. So an older version has no schema, and virt-api checks its objects
// (apiserver/older). Also without a schema each older version costs the API server memory. So it is
// not served until an administrator asks for it (config/older-versions).
//
// A launcher pod's affinity is Kubernetes' own type, and brings its documentation into
// each CRD that has the field, four times over: a fifth of the CRDs' bytes, which the API
// server keeps in memory. The field's own description says where Kubernetes'
// documentation is.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// kubernetes are the fields of Kubernetes' own types that are worth shortening. test/imports
// (TestExplain) has the same list.
var kubernetes = []string{"affinity"}

// older are the older versions that an administrator can serve, by a CRD's group.
var older = map[string][]string{
	"kubevirt.io":      {"v1alpha3"},
	"pool.kubevirt.io": {"v1alpha1"},
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: crd FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "crd:", err)
		os.Exit(1)
	}
}

func run(folder string) error {
	files, err := filepath.Glob(filepath.Join(folder, "*_*.yaml"))
	if err != nil || len(files) == 0 {
		return errors.Join(err, fmt.Errorf("find CRDs in %s: %d files", folder, len(files)))
	}
	for _, file := range files {
		before, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read CRD: %w", err)
		}
		after, err := changed(before)
		if err != nil {
			return fmt.Errorf("change %s: %w", file, err)
		}
		if err := os.WriteFile(file, after, 0o644); err != nil {
			return fmt.Errorf("write CRD: %w", err)
		}
	}
	return nil
}

// changed returns a CRD with its older versions, and without the descriptions below Kubernetes'
// own fields.
func changed(crd []byte) ([]byte, error) {
	var object map[string]any
	if err := yaml.UnmarshalStrict(crd, &object); err != nil {
		return nil, err
	}
	walk(object)
	if err := addOlder(object); err != nil {
		return nil, err
	}
	text, err := yaml.Marshal(object)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.WriteString("---\n") // as controller-gen writes it
	out.Write(text)
	return out.Bytes(), nil
}

// walk looks for Kubernetes' own fields wherever a schema has properties.
func walk(value any) {
	switch value := value.(type) {
	case map[string]any:
		properties, _ := value["properties"].(map[string]any)
		for _, name := range kubernetes {
			if schema, ok := properties[name].(map[string]any); ok {
				own, described := schema["description"]
				strip(schema)
				if described {
					schema["description"] = own
				}
			}
		}
		for _, item := range value {
			walk(item)
		}
	case []any:
		for _, item := range value {
			walk(item)
		}
	}
}

// strip removes a schema's descriptions, and those of all schemas in it. A property may
// be called "description": its value is a schema, and no text.
func strip(value any) {
	switch value := value.(type) {
	case map[string]any:
		if _, text := value["description"].(string); text {
			delete(value, "description")
		}
		for _, item := range value {
			strip(item)
		}
	case []any:
		for _, item := range value {
			strip(item)
		}
	}
}

// addOlder adds the older versions of a CRD's group behind the version that is stored, which is
// first. They differ from it in their schema, and cannot select by fields that no schema has. A kind
// that is deprecated has none: config/api/webhooks.yaml has no rule for it.
func addOlder(crd map[string]any) error {
	spec, _ := crd["spec"].(map[string]any)
	group, _ := spec["group"].(string)
	if len(older[group]) == 0 {
		return nil
	}
	versions, _ := spec["versions"].([]any)
	if len(versions) == 0 {
		return errors.New("add older versions: there is no version")
	}
	stored, _ := versions[0].(map[string]any)
	if stored["storage"] != true {
		return errors.New("add older versions: the first version is not stored")
	}
	if stored["deprecated"] == true {
		return nil
	}
	versions = versions[:1]
	for _, name := range older[group] {
		version := maps.Clone(stored)
		version["name"], version["served"], version["storage"] = name, false, false
		delete(version, "selectableFields")
		version["schema"] = map[string]any{"openAPIV3Schema": map[string]any{
			"description": fmt.Sprintf("The fields are those of %s. virt-api checks them.", stored["name"]),
			"type":        "object",
			// The API server drops fields that the stored version does not have.
			"x-kubernetes-preserve-unknown-fields": true,
		}}
		versions = append(versions, version)
	}
	spec["versions"] = versions
	return nil
}
