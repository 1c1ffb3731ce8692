// Package hostfile writes the facts of a node and a pod as a file for "qemuargs render --host", with a text for each
// field. It is pure.
package hostfile

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// width is the length that lines of a file have at most, where they can be folded.
const width = 110

// Write writes a host below a heading. The file has each field of a host with a text: those that are not set as a
// comment.
func Write(out io.Writer, heading []string, host resolve.Host) error {
	var file bytes.Buffer
	for _, line := range heading {
		comment(&file, "", line)
	}
	facts := reflect.ValueOf(host)
	for f := range fields(facts.Type()) {
		file.WriteByte('\n')
		comment(&file, "", f.name+": "+texts[f.name])
		explain(&file, f.Type, f.name, "  ")
		value := facts.FieldByIndex(f.Index)
		if isEmpty(value) {
			fmt.Fprintf(&file, "# %s is not set.\n", f.name)
			continue
		}
		if err := write(&file, f.name, value); err != nil {
			return fmt.Errorf("write the field %s: %w", f.name, err)
		}
	}
	_, err := out.Write(file.Bytes())
	return err
}

// isEmpty reports whether JSON leaves a field out.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Map, reflect.Slice:
		return v.Len() == 0
	default:
		return v.IsZero()
	}
}

// explain writes the texts of the fields below a path as comments.
func explain(out *bytes.Buffer, t reflect.Type, path, indent string) {
	for f := range fields(element(t)) {
		below := path + "." + f.name
		comment(out, indent, f.name+": "+texts[below])
		explain(out, f.Type, below, indent+"  ")
	}
}

// comment writes a text as lines of comments that are no longer than width.
func comment(out *bytes.Buffer, indent, text string) {
	line := "# " + indent
	for i, word := range strings.Fields(text) {
		if i > 0 && len(line)+len(word) >= width {
			out.WriteString(strings.TrimRight(line, " ") + "\n")
			line = "# " + indent + "  "
		}
		line += word + " "
	}
	out.WriteString(strings.TrimRight(line, " ") + "\n")
}

// write writes a field and its value.
func write(out *bytes.Buffer, name string, value reflect.Value) error {
	text, err := json.Marshal(value.Interface())
	if err != nil {
		return err
	}
	var document yaml.Node // each JSON is YAML, and keeps the order of the fields here
	if err := yaml.Unmarshal(text, &document); err != nil {
		return err
	}
	root := document.Content[0]
	plain(root)
	if root.Kind == yaml.SequenceNode && !slices.ContainsFunc(root.Content, isCollection) {
		list(out, name, root.Content)
		return nil
	}
	key := &yaml.Node{Kind: yaml.ScalarNode, Value: name}
	encoder := yaml.NewEncoder(out)
	encoder.SetIndent(2)
	if err := encoder.Encode(&yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{key, root}}); err != nil {
		return err
	}
	return encoder.Close()
}

func isCollection(n *yaml.Node) bool { return n.Kind != yaml.ScalarNode }

// isPlain matches the texts that need no quotes, in YAML 1.1 and 1.2, but for words.
var isPlain = regexp.MustCompile(`^[A-Za-z/][A-Za-z0-9./_=+-]*$`)

// words are those that mean something else in YAML 1.1 if they have no quotes.
var words = []string{"y", "n", "yes", "no", "on", "off", "true", "false", "null"}

// plain takes JSON's braces and needless quotes from a value.
func plain(n *yaml.Node) {
	if isCollection(n) || isPlain.MatchString(n.Value) && !slices.Contains(words, strings.ToLower(n.Value)) {
		n.Style = 0
	}
	for _, below := range n.Content {
		plain(below)
	}
}

// list writes a list of scalars, in as few lines as there can be.
func list(out *bytes.Buffer, name string, entries []*yaml.Node) {
	line := name + ": ["
	for i, entry := range entries {
		text := entry.Value
		if entry.Style == yaml.DoubleQuotedStyle {
			quoted, _ := json.Marshal(text) // a string
			text = string(quoted)
		}
		if i > 0 && len(line)+len(text) >= width {
			out.WriteString(strings.TrimRight(line, " ") + "\n")
			line = "  "
		}
		line += text
		if i < len(entries)-1 {
			line += ", "
		}
	}
	out.WriteString(line + "]\n")
}

// field is a field of a struct, and its name in JSON.
type field struct {
	reflect.StructField
	name string
}

// fields returns the fields that JSON has of a type. There are none of a type that writes itself as a text.
func fields(t reflect.Type) iter.Seq[field] {
	return func(yield func(field) bool) {
		if t.Kind() != reflect.Struct || t.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
			return
		}
		for _, f := range reflect.VisibleFields(t) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.IsExported() && name != "-" && !yield(field{f, name}) {
				return
			}
		}
	}
}

// element returns the type of what a pointer, a list or a map holds.
func element(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	return t
}
