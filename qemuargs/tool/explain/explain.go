// Package explain says of each argument of QEMU, and of each property of an argument, what made it: a field of the
// manifest, an instancetype, a preference, a default, a fact of the host or a rule. It finds out by experiment: it
// changes each field and each fact, resolves and renders the machine again, and sees what changes with it. What no
// change shows stands in rules.go and hints.go. Whose the fields' values are, the manifest's lineage says (package
// manifest).
package explain

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/compare"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/experiment"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/manifest"
)

// Machine is the explanation of one machine.
type Machine struct {
	// Object is the kind, namespace and name of the object, and File its file.
	Object string `json:"object"`
	File   string `json:"file"`
	// Arguments in the order in which QEMU gets them.
	Arguments []Argument `json:"arguments"`
	// Untried: the machine is so large that some entries of its lists were not tried.
	Untried bool `json:"untried,omitempty"`

	instance manifest.Instance
	lineage  *manifest.Lineage
	brings   map[string][]string // arguments that would come with another value of a field, by the field
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
	// of an index, * stands for many entries of a list, or for every one.
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
	// From are the fields that a default is made of, or that a fact is about.
	From []Source `json:"from,omitempty"`
}

// Of explains the machine of a VMI on a host.
func Of(i manifest.Instance, on manifest.Host) (*Machine, error) { return of(i, on, maxTried) }

func of(i manifest.Instance, on manifest.Host, budget int) (*Machine, error) {
	i = i.In(on)
	host := on.Of(i)
	machine, errs := resolve.Machine(i.VirtualMachineInstance, host)
	if len(errs) > 0 {
		return nil, i.Invalid(errs)
	}
	lineage := i.Lineage()
	t := try(i, on, lineage.Tree(), machine, budget)
	f := newFinder(i, lineage, on.String(), experiment.Tree(host))
	m := &Machine{Object: i.Object(), File: i.Document.File, Untried: t.budget <= 0,
		instance: i, lineage: lineage, brings: t.brings}
	all := observe(machine, "", "")
	texts := compare.Arguments(machine.Args())
	parts := compare.Parts(texts)
	for n, o := range all {
		a := Argument{Part: parts[n], Flag: o.arg.Flag, Text: string(texts[n]), ID: o.id()}
		about, otherwise := rulesOf(rules, o), rulesOf(lastResorts, o)
		a.Reason = f.reason(t.causes[o.key], ofArgument(about))
		for i, p := range o.properties {
			p.Reason = f.reason(t.causes[inArgument(o.key, propertyKey(o.arg.Flag, i, p))], ofProperty(about, p))
			if len(p.Rules) == 0 && !slices.ContainsFunc(p.Sources, func(s Source) bool { return s.Set }) {
				p.Rules = ofProperty(otherwise, p)
			}
			a.Properties = append(a.Properties, p)
		}
		m.Arguments = append(m.Arguments, a)
	}
	return m, nil
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
		// An argument is there for what its properties are there for.
		if !slices.ContainsFunc(a.Properties, func(p Property) bool { return len(p.Sources) > 0 }) {
			missing(a.Text, a.Reason)
		}
		for _, p := range a.Properties {
			missing(p.Name+"="+p.Value+" in "+a.Text, p.Reason)
		}
	}
	return errors.Join(problems...)
}

// finder finds the sources of what causes are known of.
type finder struct {
	instance manifest.Instance
	lineage  *manifest.Lineage
	host     string
	facts    any                 // the host's, as JSON has them
	set      []string            // all fields that are set
	known    map[string]Source   // by the field
	inputsOf map[string][]string // of defaults, by the field
}

func newFinder(i manifest.Instance, lineage *manifest.Lineage, host string, facts any) *finder {
	return &finder{instance: i, lineage: lineage, host: host, facts: facts, set: lineage.Fields(),
		known: map[string]Source{}, inputsOf: map[string][]string{}}
}

// reason returns that of what has causes, and rules.
func (f *finder) reason(causes []cause, rules []string) Reason {
	r := Reason{Rules: rules}
	for _, c := range causes {
		if c.fact {
			s, about := f.fact(c.path)
			r.Sources, r.fields = append(r.Sources, s), append(r.fields, about...)
			continue
		}
		r.Sources, r.fields = append(r.Sources, f.field(c.path)), append(r.fields, c.path)
		r.fields = append(r.fields, strings.Fields(c.also)...)
	}
	for _, field := range slices.Clone(r.fields) {
		r.fields = append(r.fields, f.inputs(field)...)
	}
	return r
}

// several reports whether a path stands for several fields.
func several(path string) bool { return strings.Contains(path, "[*]") }

// field returns a field, or several, as a source.
func (f *finder) field(path string) Source {
	if s, ok := f.known[path]; ok {
		return s
	}
	s := Source{Field: f.instance.Path(path)}
	if several(path) {
		s.Set = slices.ContainsFunc(f.set, func(field string) bool { return names(path, field) })
	} else if origin, ok := f.lineage.Of(path); ok {
		s.Value, s.Set, s.By, s.File, s.Line = json.RawMessage(origin.Value), true, origin.By, origin.File, origin.Line
		if origin.By != manifest.OfUID { // which says it
			for _, from := range f.lineage.From(path) {
				s.From = append(s.From, f.field(from))
			}
		}
	}
	f.known[path] = s
	return s
}

// inputs returns the fields that the default of a field, or of several, is made of.
func (f *finder) inputs(path string) []string {
	if out, ok := f.inputsOf[path]; ok {
		return out
	}
	var out []string
	for _, field := range f.set {
		if names(field, path) {
			out = append(out, f.lineage.From(field)...)
		}
	}
	f.inputsOf[path] = out
	return out
}

// fact returns a fact of the host as a source, and the fields that the fact is about.
func (f *finder) fact(path string) (s Source, about []string) {
	s = Source{Fact: path, By: "host " + f.host}
	if value, ok := experiment.At(f.facts, path); ok {
		data, err := json.Marshal(value)
		if err != nil {
			panic("explain: " + err.Error()) // it was decoded from JSON
		}
		s.Value, s.Set = data, true
	}
	about = isAbout(f.instance, path)
	for _, field := range about {
		s.From = append(s.From, f.field(field))
	}
	return s, about
}
