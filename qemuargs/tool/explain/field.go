package explain

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kubeqemu/kubeqemu/qemuargs/tool/experiment"
)

// Answer says what one field makes.
type Answer struct {
	// Source is the field itself.
	Source
	// Note says why no argument is listed, where none is.
	Note string `json:"note,omitempty"`
	// Arguments that the field makes, each with the properties that the field makes. They have
	// no reason where the field makes the properties alone.
	Arguments []Argument `json:"arguments,omitempty"`
}

// UnknownField is the error of a name that is no field of the API.
type UnknownField struct {
	// Kind of the object, and the Name that is no field of it.
	Kind, Name string
	// Near are the paths of fields with similar names.
	Near []string
}

func (e *UnknownField) Error() string {
	text := fmt.Sprintf("a %s has no field %q", e.Kind, e.Name)
	if len(e.Near) > 0 {
		text += "; near it: " + strings.Join(e.Near, ", ")
	}
	return text
}

// Field returns what a field makes. The name is a path in the manifest, or the end of one: spec,
// spec.domain and the like may be left out. Its error is an UnknownField, or names an entry
// that a list does not have.
func (m *Machine) Field(name string) (Answer, error) {
	path, refused, ok := m.find(name)
	if !ok {
		return m.outside(name)
	}
	path, err := m.numbered(path)
	if err != nil {
		return Answer{}, err
	}
	f := newFinder(m.instance, m.lineage, "", nil)
	answer := Answer{Source: f.field(path)}
	for _, a := range m.Arguments {
		made := a.Reason.makes(path)
		var properties []Property
		for _, p := range a.Properties {
			if p.makes(path) {
				properties = append(properties, p)
			}
		}
		if made || len(properties) > 0 {
			if a.Properties = properties; !made {
				a.Reason = Reason{}
			}
			answer.Arguments = append(answer.Arguments, a)
		}
	}
	if len(answer.Arguments) == 0 {
		answer.Note = m.note(path, refused, answer.Set)
	}
	return answer, nil
}

// brought returns the arguments that would come with another value of a field, or of one within it.
func (m *Machine) brought(path string) string {
	var out []string
	for _, field := range slices.Sorted(maps.Keys(m.brings)) {
		for _, what := range m.brings[field] {
			if names(field, path) && !slices.Contains(out, what) {
				out = append(out, what)
			}
		}
	}
	return strings.Join(out, ", ")
}

// makes reports whether what has the reason was made by a field, or by one within it.
func (r Reason) makes(field string) bool {
	return slices.ContainsFunc(r.fields, func(path string) bool { return names(path, field) })
}

// names reports whether a path is that of a field, or of one within it. In either, [*] stands for every entry.
func names(path, field string) bool {
	a, b := experiment.Steps(path), experiment.Steps(field)
	if len(a) < len(b) {
		return false
	}
	for i := range b {
		if a[i] != b[i] && a[i] != "*" && b[i] != "*" {
			return false
		}
	}
	return true
}

// note returns why a field makes no argument.
func (m *Machine) note(path string, refused, set bool) string {
	switch why, ok := elsewhere(path); {
	case refused:
		return "is refused: Kubeqemu does not support it yet"
	case ok:
		return "makes no argument: " + why
	case set && m.brought(path) != "":
		return "makes no argument of this machine; with another value there could be " + m.brought(path)
	case set && m.Untried:
		return "makes no argument that was found: " + tooLarge
	case set:
		return "makes no argument of this machine"
	}
	return "is not set, and makes no argument of this machine; docs/arguments.md shows what it would make"
}

const tooLarge = "the machine is so large that some entries of its lists were not tried"

// isPath is what a path of the API looks like: fields, each perhaps with an index or a key.
var isPath = regexp.MustCompile(`^\w+(\[[^][]+])?(\.\w+(\[[^][]+])?)*$`)

// find returns the field of the VMI that a name means.
func (m *Machine) find(name string) (path string, refused, ok bool) {
	for _, prefix := range []string{"", "spec."} {
		if field, is := m.instance.Field(prefix + name); is && field != "spec" && field != prefix+name {
			name = field
			break
		}
	}
	name = strings.TrimPrefix(name, "template.")
	for _, prefix := range []string{"", "spec.", "spec.domain.", "spec.domain.devices."} {
		if !isPath.MatchString(name) {
			break
		}
		if path, refused, ok = lookUp(vmiType, prefix+name); ok {
			return path, refused, true
		}
	}
	return "", false, false
}

// outside answers for a field that is not of the VMI, such as runStrategy of a VirtualMachine.
func (m *Machine) outside(name string) (Answer, error) {
	object, known := objectTypes[m.instance.Document.Kind]
	for _, prefix := range []string{"", "spec."} {
		path, _, ok := lookUp(object, prefix+name)
		if !known || !ok || !isPath.MatchString(name) {
			continue
		}
		answer := Answer{Source: Source{Field: path, File: m.instance.Document.File, Line: m.instance.Document.Line(path)}}
		by, _, _ := strings.Cut(strings.TrimPrefix(path, "spec."), ".")
		for _, a := range m.Arguments {
			var properties []Property
			for _, p := range a.Properties {
				if p.setBy(by + " \"") {
					properties = append(properties, p)
				}
			}
			made := a.Reason.setBy(by + " \"")
			if made || len(properties) > 0 {
				if a.Properties = properties; !made {
					a.Reason = Reason{}
				}
				answer.Arguments = append(answer.Arguments, a)
			}
		}
		switch holds := strings.HasPrefix(m.instance.Path("spec")+".", path+"."); {
		case holds:
			answer.Note = "holds the whole VirtualMachineInstance: name a field below it, such as domain.cpu"
		case len(answer.Arguments) == 0:
			answer.Note = "makes no argument: it is not of the VirtualMachineInstance, but of the " + m.instance.Document.Kind + " around it"
		}
		return answer, nil
	}
	var near []string
	for _, path := range nearest(name) {
		near = append(near, m.instance.Path(path))
	}
	return Answer{}, &UnknownField{Kind: m.instance.Document.Kind, Name: name, Near: near}
}

// setBy reports whether a source's value is an instancetype's or a preference's.
func (r Reason) setBy(kind string) bool {
	return slices.ContainsFunc(r.Sources, func(s Source) bool { return strings.Contains(s.By, kind) })
}

// numbered turns names of entries, as in disks[root], into their numbers.
func (m *Machine) numbered(path string) (string, error) {
	for at := 0; ; {
		open := strings.IndexByte(path[at:], '[')
		if open < 0 {
			return path, nil
		}
		open += at
		end := strings.IndexByte(path[open:], ']')
		if end < 0 {
			return path, nil // a path of the API has both
		}
		list, key, rest := path[:open], path[open+1:open+end], path[open+end+1:]
		n, found := m.entry(list, key)
		if !found && key != "*" && !m.isMap(list) {
			return "", fmt.Errorf("%s has no entry %s", m.instance.Path(list), key)
		}
		if found {
			path = fmt.Sprintf("%s[%d]%s", list, n, rest)
		}
		at = open + 1
	}
}

// isMap reports whether a field is a map, such as a nodeSelector. Its keys stay as they are.
func (m *Machine) isMap(path string) bool {
	value, ok := m.lineage.Of(path)
	return ok && strings.HasPrefix(value.Value, "{")
}

// entry returns the number of a list's entry, by its number or its name.
func (m *Machine) entry(list, key string) (n int, found bool) {
	if n, err := strconv.Atoi(key); err == nil {
		_, found = m.lineage.Of(list + "[" + key + "]")
		return n, found
	}
	for n = 0; ; n++ {
		entry := fmt.Sprintf("%s[%d]", list, n)
		if _, ok := m.lineage.Of(entry); !ok {
			return 0, false
		}
		if name, ok := m.lineage.Of(entry + ".name"); ok && name.Value == strconv.Quote(key) {
			return n, true
		}
	}
}

// Missing returns the answer for a machine that does not have a field which another machine has.
func Missing(name string, err error) Answer {
	return Answer{Source: Source{Field: name}, Note: "is not here: " + err.Error()}
}

// Explained is what --json prints: the arguments, or the answers about fields.
type Explained struct {
	Object    string     `json:"object"`
	File      string     `json:"file"`
	Arguments []Argument `json:"arguments,omitempty"`
	Fields    []Answer   `json:"fields,omitempty"`
	Untried   bool       `json:"untried,omitempty"` // as in Machine
}

// Explained returns all arguments, or the answers alone where there are some.
func (m *Machine) Explained(answers []Answer) Explained {
	e := Explained{Object: m.Object, File: m.File, Fields: answers, Untried: m.Untried}
	if len(answers) == 0 {
		e.Arguments = m.Arguments
	}
	return e
}

// Write prints all arguments, or the answers alone where there are some, as a person reads
// them.
func (m *Machine) Write(out io.Writer, answers []Answer) error {
	if len(answers) == 0 {
		if m.Untried {
			fmt.Fprintf(out, "Some sources are missing: %s.\n\n", tooLarge)
		}
		return write(out, m.Arguments)
	}
	for n, a := range answers {
		heading := a.Source.String()
		if a.Note != "" {
			heading = a.Field + " " + a.Note
			if a.Set {
				heading = a.Source.String() + " " + a.Note
			}
		} else if a.Value == nil {
			heading = a.Field
		}
		if _, err := fmt.Fprintf(out, "%s%s\n", []string{"", "\n"}[min(n, 1)], heading); err != nil {
			return err
		}
		if len(a.Arguments) == 0 {
			continue
		}
		fmt.Fprintln(out)
		if err := write(out, a.Arguments); err != nil {
			return err
		}
	}
	return nil
}
