package manifest

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeqemu/kubeqemu/api/instancetype"
	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/experiment"
)

// stage is a VMI on its way from the document to what a host gets, after one step.
type stage struct {
	by   string // who set what is new, such as instancetype "small"; empty for the document
	file string // where by's document stands
	line int
	vmi  *v1.VirtualMachineInstance
	// alone is what the preference makes without the instancetype, which sets the rest of with.
	alone *v1.VirtualMachineInstance
	with  string
}

// Origin says whose a field's value is.
type Origin struct {
	// Value is the field's, as JSON.
	Value string
	// By is who set it: instancetype "small", preference "linux", preset "legacy" and so on. It is
	// empty where the document has the field.
	By string
	// File and Line are where the field is written, or the instancetype, preference or preset
	// begins. File is empty for a default.
	File string
	Line int
}

// Lineage says of each field of a VMI whose its value is. Paths are of the VMI, such as
// spec.domain.cpu.cores.
type Lineage struct {
	instance Instance
	stages   []stage
	trees    []any      // the stages as JSON
	root     *yaml.Node // the document
	from     map[string][]string
}

// Default is who sets the fields that nobody else sets.
const Default = "Kubeqemu's default"

// OfCluster is who sets the architecture of a VMI that names none.
const OfCluster = "the cluster's default architecture"

// OfUID is who sets what a VM's VMI is known by.
const OfUID = "made of the object's UID"

// expansion is a VM, what it names, and the VM that is made of them.
type expansion struct {
	vm, expanded                     *v1.VirtualMachine
	size                             *v1beta1.VirtualMachineInstancetypeSpec
	preference                       *v1beta1.VirtualMachinePreferenceSpec
	sizeDocument, preferenceDocument Document
}

// ofTemplate returns a VMI with a VM's template.
func ofTemplate(vm *v1.VirtualMachine) *v1.VirtualMachineInstance {
	template := vm.Spec.Template
	return &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Annotations: template.ObjectMeta.Annotations}, Spec: *template.Spec.DeepCopy()}
}

// stages from the VM's template to the expanded one.
func (e expansion) stages() []stage {
	all := []stage{{vmi: ofTemplate(e.vm)}}
	if e.size != nil {
		sized := ofTemplate(e.vm)
		// The errors are those of the whole, which is expanded already.
		instancetype.Apply(e.size, nil, sized, field.NewPath("spec", "template"))
		all = append(all, e.sizeDocument.stage("instancetype", sized))
	}
	if e.preference != nil {
		preferred := e.preferenceDocument.stage("preference", ofTemplate(e.expanded))
		if e.size != nil {
			preferred.with, preferred.alone = all[len(all)-1].by, ofTemplate(e.vm)
			instancetype.Apply(nil, e.preference, preferred.alone, field.NewPath("spec", "template"))
		}
		all = append(all, preferred)
	}
	return all
}

// stage returns the stage after the document's instancetype or preference.
func (d Document) stage(kind string, vmi *v1.VirtualMachineInstance) stage {
	return stage{by: fmt.Sprintf("%s %q", kind, d.Name), file: d.File, line: d.Line("spec"), vmi: vmi}
}

// machine returns the stage after the machine type of a VM's annotation, if that type holds.
func (d Document) machine(expanded *v1.VirtualMachine, draft *v1.VirtualMachineInstance) []stage {
	if expanded.NamesMachine() || expanded.Annotations[v1.MachineTypeAnnotation] == "" {
		return nil
	}
	vmi := ofTemplate(expanded)
	vmi.Spec.Domain.Machine = draft.Spec.Domain.Machine.DeepCopy()
	return []stage{{by: "annotation " + v1.MachineTypeAnnotation, file: d.File, line: d.Line("metadata.annotations[" + v1.MachineTypeAnnotation + "]"), vmi: vmi}}
}

// identity returns the last stages to the VMI that a VM is started as: the defaults that need no UID, and
// what is made of the UID.
func identity(before, started *v1.VirtualMachineInstance) []stage {
	defaulted := before.DeepCopy()
	v1.ApplyClusterDefaults(defaulted, &v1.KubeVirtConfiguration{})
	return []stage{{by: Default, vmi: defaulted}, {by: OfUID, vmi: started.DeepCopy()}}
}

// Lineage returns the VMI's lineage, to the VMI with all defaults.
func (i Instance) Lineage() *Lineage {
	defaulted := i.VirtualMachineInstance.DeepCopy()
	v1.Default(defaulted)
	l := &Lineage{instance: i, root: i.Document.root(), stages: append(slices.Clone(i.stages), stage{by: Default, vmi: defaulted})}
	for _, s := range l.stages {
		// A VM's template has no metadata: its VMI's are those of the VM.
		vmi := s.vmi.DeepCopy()
		vmi.Name, vmi.Namespace, vmi.UID = defaulted.Name, defaulted.Namespace, defaulted.UID
		l.trees = append(l.trees, tree(vmi))
	}
	return l
}

// tree returns the VMI's fields as JSON has them.
func tree(vmi *v1.VirtualMachineInstance) any {
	return experiment.Tree(map[string]any{"metadata": vmi.ObjectMeta, "spec": vmi.Spec})
}

// Tree returns the VMI's fields, with all defaults, as JSON has them: metadata and spec.
func (l *Lineage) Tree() any { return l.trees[len(l.trees)-1] }

// Of returns whose a field's value is. ok is false for a field that is not set.
func (l *Lineage) Of(path string) (origin Origin, ok bool) {
	value, ok := experiment.At(l.trees[len(l.trees)-1], path)
	if !ok {
		return Origin{}, false
	}
	data, err := json.Marshal(value)
	if err != nil {
		panic(err) // it was decoded from JSON
	}
	origin.Value = string(data)
	first := l.first(path, value)
	s := l.stages[first]
	origin.By, origin.File, origin.Line = s.by, s.file, s.line
	if s.alone != nil {
		if alone, ok := experiment.At(tree(s.alone), path); !ok || !reflect.DeepEqual(alone, value) {
			origin.By = s.with + " with " + s.by
		}
	}
	switch {
	case path == "metadata.uid" && l.instance.UID == UID:
		origin.By = "stands for the UID that the API server gives"
	case path == "metadata.namespace" && l.instance.Document.Namespace == "":
		origin.By = "the namespace where none is named"
	case path == "metadata.name" && l.instance.Name != l.instance.Document.Name:
		origin = Origin{Value: origin.Value, By: "the pool's first VM", File: l.instance.Document.File, Line: l.instance.Document.lineIn(l.root, path)}
	case first == 0:
		origin.File, origin.Line = l.instance.Document.File, l.instance.Document.lineIn(l.root, l.instance.Path(path))
	}
	return origin, true
}

// From returns the fields that a field's default is made of, such as
// spec.domain.resources.requests.memory, and metadata.uid for what is made of the UID. The
// first call takes as long as some hundred defaultings.
func (l *Lineage) From(path string) []string {
	if from := l.defaults()[path]; len(from) > 0 {
		return from
	}
	value, ok := experiment.At(l.trees[len(l.trees)-1], path)
	if ok && l.stages[l.first(path, value)].by == OfUID {
		return []string{"metadata.uid"}
	}
	return nil
}

// first returns the stage from which on a field has its value. An object or a list has it as soon as
// it is there.
func (l *Lineage) first(path string, value any) int {
	first := len(l.stages) - 1
	for ; first > 0; first-- {
		before, was := experiment.At(l.trees[first-1], path)
		_, isObject := before.(map[string]any)
		_, isList := before.([]any)
		if !was || !isObject && !isList && !reflect.DeepEqual(before, value) {
			break
		}
	}
	return first
}

// Path returns the path of a VMI's field in the document: spec.domain in a VirtualMachine is at
// spec.template.spec.domain.
func (i Instance) Path(field string) string {
	if rest, ok := strings.CutPrefix(field, "spec"); ok {
		return i.spec + rest
	}
	return field
}

// Field returns the VMI's field at a path of the document, the other way round. ok is false where
// the path is not of the VMI's spec.
func (i Instance) Field(path string) (field string, ok bool) {
	rest, ok := strings.CutPrefix(path, i.spec)
	if !ok || rest != "" && rest[0] != '.' {
		return "", false
	}
	return "spec" + rest, true
}

// Fields returns all fields of the VMI with defaults that have no fields of their own.
func (l *Lineage) Fields() []string {
	return slices.Sorted(maps.Keys(experiment.Leaves(l.trees[len(l.trees)-1])))
}

// defaults are, for each field that has a default, the fields that the default is made of. The
// defaults themselves say so: fields are changed, and the VMI is defaulted again.
func (l *Lineage) defaults() map[string][]string {
	if l.from != nil {
		return l.from
	}
	l.from = map[string][]string{}
	last := len(l.trees) - 1
	set := experiment.Leaves(l.trees[last-1])
	t := trial{from: l.from, tree: looked(l.trees[last-1]), set: set, budget: maxTried}
	for path, value := range experiment.Leaves(l.trees[last]) {
		if _, isSet := set[path]; !isSet {
			t.made = append(t.made, made{path, experiment.Steps(path), value})
		}
	}
	groups := map[string][]string{}
	for _, path := range slices.Sorted(maps.Keys(union(set, switches(set)))) {
		if isTried(path) {
			groups[alike(path)] = append(groups[alike(path)], path)
		}
	}
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		t.try(groups[group])
	}
	for _, paths := range l.from {
		slices.Sort(paths)
	}
	return l.from
}

// metadata are the fields of the metadata that a default may be made of. None is made of labels,
// annotations and the like.
var metadata = []string{"name", "namespace", "uid"}

func isTried(path string) bool {
	field, isMeta := strings.CutPrefix(path, "metadata.")
	return !isMeta || slices.Contains(metadata, field)
}

// looked returns a tree without the metadata that no default is made of.
func looked(tree any) any {
	object, _ := tree.(map[string]any)
	meta, _ := object["metadata"].(map[string]any)
	meta = maps.Clone(meta)
	maps.DeleteFunc(meta, func(key string, _ any) bool { return !slices.Contains(metadata, key) })
	out, _ := experiment.With(tree, []string{"metadata"}, meta)
	return out
}

// alike returns a text that is the same for fields that are changed at once at first: the same field of all entries
// of a list, and all entries of a map of the scheduler.
func alike(path string) string {
	const nodes = "spec.nodeSelector"
	if strings.HasPrefix(path, nodes) {
		return nodes
	}
	return indexes.ReplaceAllString(path, "[*]")
}

var indexes = regexp.MustCompile(`\[\d+]`)

// maxTried bounds how many bytes of VMIs are defaulted to find out what defaults are made of:
// some seconds' work. The defaults of a VMI that needs more have no fields which they are made
// of.
const maxTried = 16 << 20

// trial changes fields, and looks which defaults change with them.
type trial struct {
	from   map[string][]string // what is found out
	tree   any                 // before the defaults
	set    map[string]any      // its fields
	made   []made
	budget int // how many bytes are still defaulted
}

// made is a field that the defaults made.
type made struct {
	path  string
	steps []string
	value any
}

// try changes fields that are alike, all of them at once. Where a default changes, try changes
// each half of them.
func (t *trial) try(paths []string) {
	changed := map[string]bool{}
	for n := range otherValues(t.set[paths[0]]) {
		for _, field := range t.defaultedAnew(paths, n) {
			changed[field] = changed[field] || !strings.HasPrefix(field, paths[0])
		}
	}
	maps.DeleteFunc(changed, func(_ string, elsewhere bool) bool { return !elsewhere })
	switch half := len(paths) / 2; {
	case len(changed) == 0:
	case half > 0:
		t.try(paths[:half])
		t.try(paths[half:])
	default:
		for field := range changed {
			t.from[field] = append(t.from[field], paths[0])
		}
	}
}

// switches returns the switches of the devices that are not set, by which there are more devices or
// fewer.
func switches(set map[string]any) map[string]any {
	out := map[string]any{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[v1.Devices]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		path := "spec.domain.devices." + name
		if _, isSet := set[path]; !isSet && f.Type == reflect.TypeFor[*bool]() {
			out[path] = nil
		}
	}
	return out
}

func union[V any](a, b map[string]V) map[string]V {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// otherValues returns what a field is changed to; nil takes it away, or is a switch that is not set.
func otherValues(value any) []any {
	switch v := value.(type) {
	case nil:
		return []any{true, false}
	case bool:
		return []any{nil, !v}
	case string:
		return []any{nil, v + "x"}
	}
	return []any{nil}
}

// defaultedAnew returns the fields that have another value where some fields have the nth of
// their other values.
func (t *trial) defaultedAnew(paths []string, n int) []string {
	changed := t.tree
	for _, path := range slices.Backward(paths) { // from the end: an entry that goes moves those behind it
		values := otherValues(t.set[path])
		var ok bool
		if changed, ok = experiment.With(changed, experiment.Steps(path), values[min(n, len(values)-1)]); !ok {
			return nil
		}
	}
	data, err := json.Marshal(changed)
	if t.budget -= len(data); err != nil || t.budget < 0 {
		return nil
	}
	vmi := &v1.VirtualMachineInstance{}
	if json.Unmarshal(data, vmi) != nil {
		return nil // the field takes no such value
	}
	v1.Default(vmi)
	after := tree(vmi)
	var out []string
	for _, m := range t.made {
		if now, is := experiment.Value(after, m.steps); !is || !reflect.DeepEqual(m.value, now) {
			out = append(out, m.path)
		}
	}
	return out
}
