// Command crd removes from the CustomResourceDefinitions in a folder what the API server need not
// keep in memory: documentation that stands elsewhere, presets' CEL rules, and what is below fields
// that no preset sets:
//
//	crd config/crd
//
// A launcher pod's affinity is Kubernetes' own type, and brings its documentation into
// each CRD that has the field, four times over: a fifth of the CRDs' bytes, which the API
// server keeps in memory. The field's own description says where Kubernetes'
// documentation is.
//
// The VMI of a ReplicaSet's or a pool's template has the fields of a VMI. Their documentation
// costs the API server 1.7 MiB. The template's spec says where the documentation is.
//
// The rules of presets cost the API server 3.5 MiB. virt-api checks presets by the same rules in
// Go (package validation), and the rules of a VMI hold for what a preset has written into it. virt-api refuses
// by its path what no preset sets. Such a field stays in the schema, with its bounds and with anything in it: the API
// server would otherwise drop it in silence.
//
// It adds what controller-gen cannot know: the refusal of a field that is not supported yet says why, as the field's
// documentation does. One type stands for all such fields, and the rule's message is the type's.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// kubernetes are the fields of Kubernetes' own types that are worth shortening. test/imports
// (TestKubectlExplainsEveryField) has the same list.
var kubernetes = []string{"affinity", "dnsConfig", "tolerations", "topologySpreadConstraints"}

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
		after, err := shorten(before)
		if err != nil {
			return fmt.Errorf("shorten %s: %w", file, err)
		}
		if err := os.WriteFile(file, after, 0o644); err != nil {
			return fmt.Errorf("write CRD: %w", err)
		}
	}
	return nil
}

// shorten returns a CRD without the descriptions below Kubernetes' own fields.
func shorten(crd []byte) ([]byte, error) {
	var object map[string]any
	if err := yaml.UnmarshalStrict(crd, &object); err != nil {
		return nil, err
	}
	addReasons(object)
	walk(object)
	name, _ := object["metadata"].(map[string]any)["name"].(string)
	if name == presets {
		withoutRules(object)
		if err := refuseOthers(object); err != nil {
			return nil, err
		}
	}
	if path, ok := templates[name]; ok {
		if err := shortenTemplate(object, path); err != nil {
			return nil, err
		}
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

// templates are the fields whose schema is a VMI's spec, by the CRD's name. test/imports
// (TestKubectlExplainsEveryField) knows them.
var templates = map[string][]string{
	"virtualmachineinstancereplicasets.kubevirt.io": {"spec", "template", "spec"},
	"virtualmachinepools.pool.kubevirt.io":          {"spec", "virtualMachineTemplate", "spec", "template", "spec"},
}

// elsewhere is the last sentence of such a field's description.
const elsewhere = "Its fields: kubectl explain vmi.spec."

// shortenTemplate removes the descriptions below a field, in each version of a CRD.
func shortenTemplate(crd map[string]any, path []string) error {
	return described(crd, path, func(field map[string]any, own string) error {
		strip(field)
		field["description"] = strings.TrimSuffix(own, " "+elsewhere) + " " + elsewhere
		return nil
	})
}

// described calls change with the schema of a field and its description, for each version of a CRD.
func described(crd map[string]any, path []string, change func(field map[string]any, own string) error) error {
	spec, _ := crd["spec"].(map[string]any)
	versions, _ := spec["versions"].([]any)
	for _, version := range versions {
		schema, _ := version.(map[string]any)["schema"].(map[string]any)
		field, _ := schema["openAPIV3Schema"].(map[string]any)
		for _, name := range path {
			properties, _ := field["properties"].(map[string]any)
			field, _ = properties[name].(map[string]any)
		}
		own, _ := field["description"].(string)
		if own == "" {
			return fmt.Errorf("find the description of %s: there is none", strings.Join(path, "."))
		}
		if err := change(field, own); err != nil {
			return err
		}
	}
	return nil
}

const presets = "virtualmachineinstancepresets.kubevirt.io"

// withoutRules removes the CEL rules of all schemas.
func withoutRules(value any) {
	switch value := value.(type) {
	case map[string]any:
		if _, rules := value["x-kubernetes-validations"].([]any); rules {
			delete(value, "x-kubernetes-validations")
		}
		for _, item := range value {
			withoutRules(item)
		}
	case []any:
		for _, item := range value {
			withoutRules(item)
		}
	}
}

// refuseOthers leaves no more than names and types of the fields of a preset's domain that no preset sets. The domain's
// documentation begins with those that presets set.
func refuseOthers(crd map[string]any) error {
	return described(crd, []string{"spec", "domain"}, func(domain map[string]any, own string) error {
		first, _, _ := strings.Cut(oneLine(own), ". ")
		set, ok := strings.CutPrefix(first, "Domain sets ")
		if !ok {
			return fmt.Errorf("find what presets set: the description of spec.domain begins with %q", first)
		}
		refuse(domain, "", strings.Fields(strings.ReplaceAll(set, ",", "")))
		return nil
	})
}

// refuse does so for an object. prefix is the object's path and a dot, or empty for the domain.
func refuse(object map[string]any, prefix string, set []string) {
	properties, _ := object["properties"].(map[string]any)
	for name, field := range properties {
		field, path := field.(map[string]any), prefix+name
		switch {
		case slices.Contains(set, path):
		case slices.ContainsFunc(set, func(other string) bool { return strings.HasPrefix(other, path+".") }):
			refuse(field, path+".", set)
			if part, own := setPart(path+".", set), oneLine(field["description"]); !strings.HasPrefix(own, part) {
				field["description"] = part + own
			}
		case !refusals.MatchString(oneLine(field["description"])): // otherwise nothing is promised already
			properties[name] = refused(field)
		}
	}
}

// setPart returns a sentence of what a preset sets of an object.
func setPart(prefix string, set []string) string {
	var parts []string
	for _, path := range set {
		if part, ok := strings.CutPrefix(path, prefix); ok {
			parts = append(parts, part)
		}
	}
	return "A preset sets of it: " + strings.Join(parts, ", ") + ". "
}

// refused returns the schema of a field that no preset sets, of the field's own schema. A type that is nil stands for
// several.
func refused(field map[string]any) map[string]any {
	const anything = "x-kubernetes-preserve-unknown-fields"
	schema := map[string]any{"description": "Refused: a preset cannot set it; set it in the VirtualMachineInstance."}
	for _, bound := range []string{"type", "maxItems", "maxLength"} {
		if value, ok := field[bound]; ok {
			schema[bound] = value
		}
	}
	switch field["type"] {
	case "array":
		schema["items"] = map[string]any{"type": "object", anything: true}
	case "object", nil:
		schema[anything] = true
	}
	return schema
}

// oneLine returns a description without its line breaks.
func oneLine(description any) string {
	text, _ := description.(string)
	return strings.Join(strings.Fields(text), " ")
}

// refusals matches the documentation of a refused field that says why.
var refusals = regexp.MustCompile(`^\w+ (?:is|are) refused: ((?:not supported yet|never supported): .*)\.$`)

// refusedTypes are the messages of the rules that refuse a field whatever it is (api/v1, Unsupported and Never).
var refusedTypes = []string{"not supported yet", "never supported; kubectl explain says why"}

// addReasons gives the rules that refuse a field the reason of its documentation.
func addReasons(value any) {
	switch value := value.(type) {
	case map[string]any:
		why := refusals.FindStringSubmatch(oneLine(value["description"]))
		rules, _ := value["x-kubernetes-validations"].([]any)
		for _, rule := range rules {
			rule, _ := rule.(map[string]any)
			if message, _ := rule["message"].(string); why != nil && slices.Contains(refusedTypes, message) {
				rule["message"] = why[1]
			}
		}
		for _, item := range value {
			addReasons(item)
		}
	case []any:
		for _, item := range value {
			addReasons(item)
		}
	}
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
