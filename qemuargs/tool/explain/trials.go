package explain

import (
	"cmp"
	"encoding/json"
	"reflect"
	"regexp"
	"slices"
	"strings"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/experiment"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/manifest"
)

// maxTried bounds how many bytes of VMIs and hosts are resolved anew to explain a machine: some seconds' work. Of a
// machine that needs more, some entries of lists are not tried.
const maxTried = 16 << 20

// cause is what changes something of the command line: a field of the VMI, or a fact of the host.
type cause struct {
	path  string
	also  string // other fields that have to change with it, with spaces between them
	fact  bool
	whole bool // an object or an entry of a list that goes
	kind  bool // what comes in its place is of another kind
	unset bool // the VMI or the host does not have it
}

// trials find out what changes each argument, and each property of one.
type trials struct {
	instance manifest.Instance
	on       manifest.Host
	machine  *qemuargs.Machine
	tree     any // the VMI
	facts    any // the host
	before   map[string]observed
	causes   map[string][]cause  // by the key of an argument, and of a property
	brings   map[string][]string // arguments that come with another value of a field, by the field
	budget   int                 // bytes that may still be tried; none are left of a machine that is too large
}

// inArgument returns the key of a property.
func inArgument(argument, property string) string { return argument + "\x00" + property }

// try changes each field of the VMI and each fact of the host, and resolves and renders the machine again.
func try(i manifest.Instance, on manifest.Host, tree any, machine *qemuargs.Machine, budget int) *trials {
	t := &trials{instance: i, on: on, machine: machine, tree: resolved(tree), facts: experiment.Tree(on.Of(i)),
		before: map[string]observed{}, causes: map[string][]cause{}, brings: map[string][]string{}, budget: budget}
	for _, o := range observe(machine, "", "") {
		t.before[o.key] = o
	}
	fields, facts := experiment.Changes(t.tree, unset(t.tree)), experiment.Changes(t.facts, unsetFacts(t.facts))
	for _, inList := range []bool{false, true} { // entries of lists are what is not tried of a machine that is too large
		for _, c := range fields {
			// A guest of another architecture has another board, and nothing of it is the same.
			if c.InList() == inList && !slices.Contains(c.Paths, "spec.architecture") {
				t.field(c)
			}
		}
		for _, c := range facts {
			if c.InList() == inList {
				t.fact(c)
			}
		}
	}
	t.hint()
	for key, all := range t.causes {
		t.causes[key] = merged(finest(all))
	}
	return t
}

// decode reads a changed tree. It reports whether the tree is one of the type's, and is still within the budget.
func (t *trials) decode(tree any, into any) bool {
	if t.budget <= 0 {
		return false
	}
	data, err := json.Marshal(tree)
	t.budget -= len(data)
	return err == nil && json.Unmarshal(data, into) == nil
}

// field tries a change of the VMI.
func (t *trials) field(c experiment.Change) {
	vmi := &v1.VirtualMachineInstance{}
	if !t.decode(c.Tree, vmi) {
		return
	}
	changed := t.instance
	changed.VirtualMachineInstance = vmi
	host := t.on.Of(changed)
	if c.Old != "" {
		host = renamed(host, c.Old, c.New)
	}
	t.see(vmi, host, c, false)
}

// fact tries a change of the host.
func (t *trials) fact(c experiment.Change) {
	var host resolve.Host
	if t.decode(c.Tree, &host) {
		t.see(t.instance.VirtualMachineInstance, host, c, true)
	}
}

// renamed returns a host that knows a disk or an interface by another name, too.
func renamed(host resolve.Host, old, name string) resolve.Host {
	host.ContainerDisks = alsoBy(host.ContainerDisks, old, name)
	host.Claims = alsoBy(host.Claims, old, name)
	host.ConfigVolumes = alsoBy(host.ConfigVolumes, old, name)
	host.NICs = alsoBy(host.NICs, old, name)
	return host
}

func alsoBy[V any](facts map[string]V, old, name string) map[string]V {
	out := map[string]V{}
	for key, value := range facts {
		if out[key] = value; key == old {
			out[name] = value
		}
	}
	return out
}

// see notes what of the command line a change changes. A change that makes the VMI invalid shows nothing.
func (t *trials) see(vmi *v1.VirtualMachineInstance, host resolve.Host, c experiment.Change, isFact bool) {
	m, errs := resolve.Machine(vmi, host)
	if len(errs) > 0 || reflect.DeepEqual(m, t.machine) {
		return
	}
	after := map[string]observed{}
	for _, o := range observe(m, c.Old, c.New) {
		if after[o.key] = o; t.before[o.key].key == "" && !isFact {
			t.bring(c, o)
		}
	}
	same := func(a, b Property) bool { return a.Name == b.Name && a.Value == b.Value }
	for key, was := range t.before {
		now, ok := after[key]
		if !ok {
			t.note(key, c, isFact)
			continue
		}
		if now.renamed {
			t.note(key, c, isFact) // the argument is there for what has the name
		}
		if slices.EqualFunc(now.properties, was.properties, same) {
			continue
		}
		values := now.values()
		for property, value := range was.values() {
			if other, ok := values[property]; !ok || other != value {
				t.note(inArgument(key, property), c, isFact)
			}
		}
	}
}

func (t *trials) note(key string, c experiment.Change, isFact bool) {
	tree := map[bool]any{false: t.tree, true: t.facts}[isFact]
	by := cause{path: c.Paths[0], also: strings.Join(c.Paths[1:], " "), fact: isFact, whole: c.Whole, kind: c.Kind,
		unset: !isSet(tree, c.Paths[0])}
	if !slices.Contains(t.causes[key], by) {
		t.causes[key] = append(t.causes[key], by)
	}
}

func (t *trials) bring(c experiment.Change, o observed) {
	what := strings.TrimSpace(o.arg.Flag + " " + o.id())
	for _, path := range c.Paths {
		if !slices.Contains(t.brings[path], what) {
			t.brings[path] = append(t.brings[path], what)
		}
	}
}

// finest returns the causes in order. An object that goes is a cause where nothing that is set within it is one, an
// object's kind where nothing within it is one, and an entry of a list where no field is one: whatever comes after an
// entry moves up when it goes.
func finest(all []cause) []cause {
	isField := func(c cause) bool { return !c.whole }
	out := slices.DeleteFunc(slices.Clone(all), func(c cause) bool {
		isEntry := strings.HasSuffix(c.path, ".name") && slices.ContainsFunc(all, isField)
		return c.whole && (isEntry || slices.ContainsFunc(all, func(other cause) bool {
			return isWithin(other.path, c.path) && (!other.unset || c.kind) || other.path == c.path && !other.whole
		}))
	})
	slices.SortFunc(out, func(a, b cause) int {
		if a.fact != b.fact {
			return map[bool]int{false: -1, true: 1}[a.fact]
		}
		return cmp.Compare(a.path, b.path)
	})
	return slices.CompactFunc(out, func(a, b cause) bool { return a.fact == b.fact && a.path == b.path })
}

// many is how many entries of a list may have causes of one kind before they are told as one.
const many = 4

// merged returns causes in order, in which [*] stands for the entries of a list of which many have the same field.
func merged(all []cause) (out []cause) {
	alike := func(c cause) cause {
		return cause{path: indexes.ReplaceAllString(c.path, "[*]"), fact: c.fact, unset: c.unset}
	}
	count := map[cause]int{}
	for _, c := range all {
		count[alike(c)]++
	}
	for _, c := range all {
		if count[alike(c)] > many {
			c = alike(c)
		}
		if !slices.Contains(out, c) {
			out = append(out, c)
		}
	}
	return out
}

var indexes = regexp.MustCompile(`\[\d+\]`)

// isWithin reports whether a field is within another one.
func isWithin(path, other string) bool {
	rest, ok := strings.CutPrefix(path, other)
	return ok && rest != "" && (rest[0] == '.' || rest[0] == '[')
}

// annotations are those by which the arguments of a machine differ.
var annotations = []string{
	"metadata.annotations[" + v1.DisablePCIHole64Annotation + "]",
	"metadata.annotations[" + v1.NoFreePageReportingAnnotation + "]",
}

// resolved returns the fields of a VMI that its machine is made of: of its metadata, little is.
func resolved(tree any) any {
	spec, _ := experiment.At(tree, "spec")
	var out any = map[string]any{"spec": spec}
	for _, path := range append([]string{"metadata.name", "metadata.namespace", "metadata.uid"}, annotations...) {
		if value, ok := experiment.At(tree, path); ok {
			out, _ = experiment.With(out, experiment.Steps(path), value)
		}
	}
	return out
}

// unset returns values of the fields that a VMI does not set and that can change a machine: switches, and fields whose
// values are known.
func unset(tree any) map[string][]any {
	out := map[string][]any{}
	for _, a := range annotations {
		if !isSet(tree, a) {
			out[a] = []any{"true"}
		}
	}
	domain, _ := experiment.At(tree, "spec.domain")
	unsetBelow(reflect.TypeFor[v1.DomainSpec](), domain, "spec.domain", out)
	return out
}

// unsetFacts does what unset does, for the facts of a host.
func unsetFacts(tree any) map[string][]any {
	out := map[string][]any{}
	unsetBelow(reflect.TypeFor[resolve.Host](), tree, "", out)
	return out
}

func isSet(tree any, path string) bool {
	_, ok := experiment.At(tree, path)
	return ok
}

// unsetBelow notes what is not set in a value of a type at a path.
func unsetBelow(t reflect.Type, value any, path string, out map[string][]any) {
	t = plainType(t)
	switch {
	case isRefused(t):
	case t.Kind() == reflect.Slice:
		list, _ := value.([]any)
		for n, entry := range list {
			unsetBelow(t.Elem(), entry, path+experiment.Index(n), out)
		}
	case t.Kind() == reflect.Map:
		object, _ := value.(map[string]any)
		for key, entry := range object {
			unsetBelow(t.Elem(), entry, path+"["+key+"]", out)
		}
	case t.Kind() == reflect.Struct && !isLeaf(t) && strings.HasPrefix(t.PkgPath(), ours):
		object, _ := value.(map[string]any)
		for _, f := range reflect.VisibleFields(t) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && !f.Anonymous {
				unsetBelow(f.Type, object[name], strings.TrimPrefix(path+"."+name, "."), out)
			}
		}
	case value != nil:
	case t.Kind() == reflect.Bool:
		out[path] = []any{true, false}
	default:
		if others := experiment.Others(path, nil); len(others) > 0 {
			out[path] = others
		}
	}
}

// ours is what the paths of the project's packages begin with: other types, such as quantities, have no switches.
const ours = "github.com/kubeqemu/kubeqemu/"
