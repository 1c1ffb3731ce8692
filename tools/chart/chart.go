package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

// object is one manifest.
type object map[string]any

func (o object) kind() string { return o.text("kind") }
func (o object) name() string { return o.at("metadata").text("name") }

func (o object) text(field string) string {
	s, _ := o[field].(string)
	return s
}

// at is the object at a path of fields; an empty one where there is none.
func (o object) at(path ...string) object {
	for _, field := range path {
		next, _ := o[field].(map[string]any)
		o = next
	}
	return o
}

func (o object) items(field string) []object {
	list, _ := o[field].([]any)
	var items []object
	for _, item := range list {
		if m, ok := item.(map[string]any); ok {
			items = append(items, m)
		}
	}
	return items
}

// Chart returns the files of the chart that are made of manifests.
func Chart(manifests []byte) (map[string][]byte, error) {
	objects, err := parse(manifests)
	if err != nil {
		return nil, err
	}
	v, err := newValues(objects)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{"values.yaml": v.yaml(), "values.schema.json": v.schema()}
	for _, o := range objects {
		text, err := v.template(o)
		if err != nil {
			return nil, fmt.Errorf("make a template of %s %s: %w", o.kind(), o.name(), err)
		}
		name := "templates/" + strings.ToLower(o.kind()) + "-" + strings.NewReplacer(":", "-", "/", "-").Replace(o.name()) + ".yaml"
		if namespace := o.at("metadata").text("namespace"); files[name] != nil && namespace != "" {
			name = strings.TrimSuffix(name, ".yaml") + "-" + namespace + ".yaml"
		}
		if files[name] != nil {
			return nil, fmt.Errorf("two objects become %s", name)
		}
		files[name] = text
	}
	return files, nil
}

var separator = regexp.MustCompile(`(?m)^---\s*$`)

func parse(manifests []byte) ([]object, error) {
	var objects []object
	for _, doc := range separator.Split(string(manifests), -1) {
		if strings.TrimSpace(doc) == "" {
			continue
		}
		var o object
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			return nil, fmt.Errorf("read manifests: %w", err)
		}
		if o.kind() == "" || o.name() == "" {
			return nil, fmt.Errorf("read manifests: an object without kind or name: %.80s", doc)
		}
		objects = append(objects, o)
	}
	if len(objects) == 0 {
		return nil, fmt.Errorf("read manifests: there are none")
	}
	return objects, nil
}

// A mark stands in a manifest for what the template leaves open.
func mark(what string) string { return "HELM<" + what + ">" }

var (
	marked = regexp.MustCompile(`HELM<([^>]*)>`)
	// A line that is a mark as a whole is replaced by several; quotes are YAML's.
	markedField = regexp.MustCompile(`(?m)^( *)(\w+): '?HELM<(block) ([\w.]+)>'?\n`)
	markedArg   = regexp.MustCompile(`(?m)^( *)- '?HELM<(elected) (\w+)>'?\n`)
	markedFlag  = regexp.MustCompile(`(?m)^( *)- '?HELM<flag (\w+) ([\w-]+)>'?\n`)
)

// template turns one object into a template.
func (v values) template(o object) ([]byte, error) {
	o = v.opened(o)
	text, err := yaml.Marshal(o)
	if err != nil {
		return nil, err
	}
	// What looks like a template in a manifest is text.
	text = bytes.ReplaceAll(text, []byte("{{"), []byte(`{{ "{{" }}`))
	text = markedField.ReplaceAllFunc(text, func(line []byte) []byte {
		m := markedField.FindSubmatch(line)
		return block(string(m[1]), string(m[2]), string(m[4]))
	})
	text = markedArg.ReplaceAll(text, []byte("$1{{- if gt (int .Values.$3.replicas) 1 }}\n$1- --leader-elect\n$1{{- end }}\n"))
	text = markedFlag.ReplaceAll(text, []byte("$1{{- if .Values.$2 }}\n$1- --$3\n$1{{- end }}\n"))
	text = marked.ReplaceAll(text, []byte("{{ .Values.$1 }}"))
	if value := only(o); value != "" {
		text = append([]byte("{{- if .Values."+value+" }}\n"), append(text, "{{- end }}\n"...)...)
	}
	return text, nil
}

// optional is the label of objects that an installation can do without.
const optional = "kubevirt.io/optional"

// only is the value that an object depends on, or "".
func only(o object) string {
	if o.kind() == "Namespace" {
		return "createNamespace"
	}
	return camel(o.at("metadata", "labels").text(optional))
}

// block is a field whose value is a whole list or map, and is left out when empty.
func block(indent, field, value string) []byte {
	if field == "topologySpreadConstraints" {
		workload, name, _ := strings.Cut(value, ".")
		return fmt.Appendf(nil, `%[1]s{{- if gt (int .Values.%[2]s.replicas) 1 }}
%[1]stopologySpreadConstraints:
%[1]s- maxSkew: 1
%[1]s  topologyKey: kubernetes.io/hostname
%[1]s  whenUnsatisfiable: ScheduleAnyway
%[1]s  labelSelector:
%[1]s    matchLabels:
%[1]s      kubevirt.io: %[3]s
%[1]s{{- end }}
`, indent, workload, strings.ReplaceAll(name, "_", "-"))
	}
	return fmt.Appendf(nil, "%[1]s{{- with .Values.%[3]s }}\n%[1]s%[2]s:\n%[1]s  {{- toYaml . | nindent %[4]d }}\n%[1]s{{- end }}\n",
		indent, field, value, len(indent)+2)
}
