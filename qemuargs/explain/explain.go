// Package explain says of each argument of QEMU, and of each property of an argument, what made
// it: a field of the manifest, an instancetype, a preference, a default, a fact of the host or a
// rule. It adds nothing of its own: the builder of the arguments says what parts of the Machine
// they are made of (package qemuargs), whoever decided about the Machine says by which fields
// and facts (package resolve), and the manifest's lineage says whose the fields' values are
// (package manifest).
package explain

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/compare"
	"github.com/kubeqemu/kubeqemu/qemuargs/manifest"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// Machine is the explanation of one machine.
type Machine struct {
	// Object is the kind, namespace and name of the object, and File its file.
	Object string `json:"object"`
	File   string `json:"file"`
	// Arguments in the order in which QEMU gets them.
	Arguments []Argument `json:"arguments"`

	instance  manifest.Instance
	lineage   *manifest.Lineage
	decisions *resolve.Decisions
}

// Argument is one argument and what made it.
type Argument struct {
	// Part of the machine that the argument is of, such as "disk root": package compare has it.
	Part string `json:"part"`
	// Flag is such as -device, and Text the argument as QEMU gets it, with the flag.
	Flag string `json:"flag"`
	Text string `json:"text"`
	// ID is the device's, the node's or the like. It is empty where there is none.
	ID string `json:"id,omitempty"`
	// Reason why the argument is there at all.
	Reason
	Properties []Property `json:"properties,omitempty"`

	// key is the same for the same argument of another machine, whatever its properties are.
	key string
}

// Property is one property of an argument. The name is empty for a value without one.
type Property struct {
	Name  string `json:"name,omitempty"`
	Value string `json:"value"`
	Reason
}

// Reason is why something is as it is: by sources, by rules, or by both.
type Reason struct {
	Rules   []string `json:"rules,omitempty"`
	Sources []Source `json:"sources,omitempty"`

	fields []string // the VMI's, also those that a default is made of
}

// Source is a field of the manifest, or a fact of the host.
type Source struct {
	// Field is the path in the manifest, such as spec.template.spec.domain.cpu.cores. In place
	// of an index, * stands for every entry of a list, and 0-3 for the first four.
	Field string `json:"field,omitempty"`
	// Fact is a path in the host's facts, such as qemuVersion.
	Fact string `json:"fact,omitempty"`
	// Value as JSON. It is empty for a field that is not set, and for several fields.
	Value json.RawMessage `json:"value,omitempty"`
	// Set says that the field, or one of several fields, is set.
	Set bool `json:"set"`
	// By is who set the field, where the manifest does not have it: an instancetype, a
	// preference or a default.
	By string `json:"by,omitempty"`
	// File and Line are where it is written.
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
	// From are the fields that a default is made of.
	From []Source `json:"from,omitempty"`
}

// Of explains the machine of a VMI on a host.
func Of(i manifest.Instance, on manifest.Host) (*Machine, error) { return of(i, on, deep) }

// depth is how far sources are followed.
type depth int

const (
	shallow depth = iota // to the fields
	deep                 // to the fields that defaults are made of, too
)

func of(i manifest.Instance, on manifest.Host, depth depth) (*Machine, error) {
	i = i.In(on)
	host := on.Of(i)
	machine, decisions, errs := resolve.Explained(i.VirtualMachineInstance, host)
	if len(errs) > 0 {
		return nil, i.Invalid(errs)
	}
	f := &finder{depth: depth, instance: i, lineage: i.Lineage(), decisions: decisions, host: on.String(), facts: facts(host), known: map[string]Source{}, inputsOf: map[string][]string{}}
	f.set = f.lineage.Fields()
	m := &Machine{Object: i.Object(), File: i.Document.File, instance: i, lineage: f.lineage, decisions: decisions}
	args := machine.Args()
	texts := compare.Arguments(args)
	parts := compare.Parts(texts)
	for n, a := range args {
		argument := Argument{Part: parts[n], Flag: a.Flag, Text: string(texts[n]), Reason: f.reason(a.Because()), key: keyOf(a)}
		for _, p := range a.Properties() {
			argument.Properties = append(argument.Properties, Property{Name: p.Name, Value: p.Value, Reason: f.reason(p.From, p.Rule)})
			if p.Name == "id" || p.Name == "node-name" {
				argument.ID = plain(p.Value)
			}
		}
		m.Arguments = append(m.Arguments, argument)
	}
	return m, nil
}

// keyOf tells the arguments of a machine apart. A kind of argument is there once for each part
// of the machine, but for those that the builder always writes. A network card has one -netdev,
// of whatever type.
func keyOf(a qemuargs.Arg) string {
	kind := fmt.Sprintf("%T", a.Value)
	if a.Flag == "-netdev" {
		kind = ""
	}
	return fmt.Sprintf("%s %s %s %s %s", a.Flag, kind, a.Of, a.From, a.Rule)
}

// Check returns an error that names the arguments and properties of which nothing says what
// made them.
func (m *Machine) Check() error {
	var problems []error
	missing := func(what string, r Reason) {
		if len(r.Rules)+len(r.Sources) == 0 {
			problems = append(problems, errors.New("nothing says what made "+what))
		}
	}
	for _, a := range m.Arguments {
		missing(a.Text, a.Reason)
		for _, p := range a.Properties {
			missing(p.Name+"="+p.Value+" in "+a.Text, p.Reason)
		}
	}
	return errors.Join(problems...)
}

// finder finds the sources of parts of a Machine.
type finder struct {
	depth     depth
	instance  manifest.Instance
	lineage   *manifest.Lineage
	decisions *resolve.Decisions
	host      string
	facts     any
	set       []string            // all fields that are set
	known     map[string]Source   // by the field
	inputsOf  map[string][]string // of defaults, by the field
}

// facts are the host's as JSON has them.
func facts(host resolve.Host) any {
	data, err := json.Marshal(host)
	var out any
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		panic(err) // Host is plain data
	}
	return out
}

// reason is that of what comes from parts of the Machine, and from a rule of the builder. A
// part without a decision is one that the machine does not have.
func (f *finder) reason(parts []string, rule string) Reason {
	r := Reason{}
	r.rule(rule)
	for _, part := range parts {
		d, ok := f.decisions.Of(part)
		if !ok {
			continue
		}
		r.rule(d.Rule)
		for _, field := range d.Fields {
			if slices.ContainsFunc(r.fields, func(known string) bool { return known == field || several(known) && same(known, field) }) {
				continue
			}
			r.fields = append(r.fields, field)
			r.Sources = append(r.Sources, f.field(field))
		}
		for _, fact := range d.Facts {
			if s := f.fact(fact); !slices.ContainsFunc(r.Sources, func(other Source) bool { return other.Fact == s.Fact }) {
				r.Sources = append(r.Sources, s)
			}
		}
	}
	for _, field := range slices.Clone(r.fields) {
		r.fields = append(r.fields, f.inputs(field)...)
	}
	return r
}

func (r *Reason) rule(text string) {
	if text != "" && !slices.Contains(r.Rules, text) {
		r.Rules = append(r.Rules, text)
	}
}

// several says whether a path stands for several fields.
func several(path string) bool { return strings.Contains(path, "[*]") || strings.Contains(path, "[0-") }

// same says whether two paths stand for the same field, or for fields of which one is the other.
func same(a, b string) bool { return resolve.Names(a, b) && resolve.Names(b, a) }

// field is a field, or several, as a source.
func (f *finder) field(path string) Source {
	if s, ok := f.known[path]; ok {
		return s
	}
	s := Source{Field: f.instance.Path(path)}
	if several(path) {
		s.Set = slices.ContainsFunc(f.set, func(field string) bool { return resolve.Names(path, field) })
	} else if origin, ok := f.lineage.Of(path); ok {
		s.Value, s.Set, s.By, s.File, s.Line = json.RawMessage(origin.Value), true, origin.By, origin.File, origin.Line
		if f.depth == deep && origin.By != manifest.OfUID { // which says it
			for _, from := range f.lineage.From(path) {
				s.From = append(s.From, f.field(from))
			}
		}
	}
	f.known[path] = s
	return s
}

// inputs are the fields that the default of a field, or of several, is made of.
func (f *finder) inputs(path string) []string {
	if out, ok := f.inputsOf[path]; ok || f.depth == shallow {
		return out
	}
	var out []string
	for _, field := range f.set {
		if resolve.Names(field, path) {
			out = append(out, f.lineage.From(field)...)
		}
	}
	f.inputsOf[path] = out
	return out
}

// fact is a fact of the host as a source.
func (f *finder) fact(path string) Source {
	s := Source{Fact: path, By: "host " + f.host}
	value, ok := f.facts, true
	rest := path
	for rest != "" && ok {
		var key string
		if key, rest, _ = strings.Cut(rest, "."); strings.Contains(key, "[") {
			list, name, _ := strings.Cut(strings.TrimSuffix(key, "]"), "[")
			value, _ = child(value, list)
			key = name
		}
		value, ok = child(value, key)
	}
	if !ok {
		return s
	}
	data, err := json.Marshal(value)
	if err != nil {
		panic(err) // it was decoded from JSON
	}
	s.Value, s.Set = data, true
	return s
}

func child(value any, key string) (any, bool) {
	object, _ := value.(map[string]any)
	value, ok := object[key]
	return value, ok
}
