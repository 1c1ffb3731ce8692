package manifest

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeqemu/kubeqemu/api/instancetype"
	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
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
	// By is who set it: instancetype "small", preference "linux" and so on. It is empty where
	// the document has the field.
	By string
	// File and Line are where the field is written, or the instancetype or preference begins.
	// File is empty for a default.
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

// OfUID is who sets what a VM's VMI is known by.
const OfUID = "made of the object's UID"

// stages of a VM's VMI, from the template to the VMI that the VM is started as.
func (s Set) stages(vm *v1.VirtualMachine, expanded *v1.VirtualMachine, started *v1.VirtualMachineInstance, size *v1beta1.VirtualMachineInstancetypeSpec, preference *v1beta1.VirtualMachinePreferenceSpec) []stage {
	of := func(template *v1.VirtualMachineInstanceTemplateSpec) *v1.VirtualMachineInstance {
		return &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Annotations: template.ObjectMeta.Annotations}, Spec: *template.Spec.DeepCopy()}
	}
	all := []stage{{vmi: of(&vm.Spec.Template)}}
	if matcher := vm.Spec.Instancetype; matcher != nil {
		sized := of(&vm.Spec.Template)
		// The errors are those of the whole, which is expanded already.
		instancetype.Apply(size, nil, sized, field.NewPath("spec", "template"))
		all = append(all, s.stageOf("instancetype", matcher.Name, sized))
	}
	if matcher := vm.Spec.Preference; matcher != nil {
		preferred := s.stageOf("preference", matcher.Name, of(&expanded.Spec.Template))
		if vm.Spec.Instancetype != nil {
			preferred.with, preferred.alone = all[len(all)-1].by, of(&vm.Spec.Template)
			instancetype.Apply(nil, preference, preferred.alone, field.NewPath("spec", "template"))
		}
		all = append(all, preferred)
	}
	return append(all, stage{by: OfUID, vmi: started.DeepCopy()})
}

// stageOf is the stage after an instancetype or a preference.
func (s Set) stageOf(kind, name string, vmi *v1.VirtualMachineInstance) stage {
	out := stage{by: fmt.Sprintf("%s %q", kind, name), vmi: vmi}
	for _, d := range s {
		if d.Name == name && d.APIVersion == v1beta1.GroupVersion.String() && strings.HasSuffix(strings.ToLower(d.Kind), kind) {
			out.file, out.line = d.File, d.Line("spec")
		}
	}
	return out
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

// tree is the VMI's fields as JSON has them.
func tree(vmi *v1.VirtualMachineInstance) any {
	data, err := json.Marshal(map[string]any{"metadata": vmi.ObjectMeta, "spec": vmi.Spec})
	var out any
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		panic(err) // it came as JSON
	}
	return out
}

// Of returns whose a field's value is. ok is false for a field that is not set.
func (l *Lineage) Of(path string) (origin Origin, ok bool) {
	value, ok := at(l.trees[len(l.trees)-1], path)
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
		if alone, ok := at(tree(s.alone), path); !ok || !reflect.DeepEqual(alone, value) {
			origin.By = s.with + " with " + s.by
		}
	}
	switch {
	case path == "metadata.uid" && l.instance.UID == UID:
		origin.By = "stands for the UID that the API server gives"
	case path == "metadata.namespace" && l.instance.Document.Namespace == "":
		origin.By = "the namespace where none is named"
	case first == 0:
		origin.File, origin.Line = l.instance.Document.File, l.instance.Document.lineIn(l.root, l.instance.Path(path))
	}
	return origin, true
}

// From are the fields that a field's default is made of, such as
// spec.domain.resources.requests.memory, and metadata.uid for what is made of the UID. The
// first call takes as long as some hundred defaultings.
func (l *Lineage) From(path string) []string {
	if from := l.defaults()[path]; len(from) > 0 {
		return from
	}
	value, ok := at(l.trees[len(l.trees)-1], path)
	if ok && l.stages[l.first(path, value)].by == OfUID {
		return []string{"metadata.uid"}
	}
	return nil
}

// first is the stage from which on a field has its value. An object or a list has it as soon as
// it is there.
func (l *Lineage) first(path string, value any) int {
	first := len(l.stages) - 1
	for ; first > 0; first-- {
		before, was := at(l.trees[first-1], path)
		_, isObject := before.(map[string]any)
		_, isList := before.([]any)
		if !was || !isObject && !isList && !reflect.DeepEqual(before, value) {
			break
		}
	}
	return first
}

// Path is the path of a VMI's field in the document: spec.domain in a VirtualMachine is at
// spec.template.spec.domain.
func (i Instance) Path(field string) string {
	if rest, ok := strings.CutPrefix(field, "spec"); ok {
		return i.spec + rest
	}
	return field
}

// Field is the VMI's field at a path of the document, the other way round. ok is false where
// the path is not of the VMI's spec.
func (i Instance) Field(path string) (field string, ok bool) {
	rest, ok := strings.CutPrefix(path, i.spec)
	if !ok || rest != "" && rest[0] != '.' {
		return "", false
	}
	return "spec" + rest, true
}

// Fields are all fields of the VMI with defaults that have no fields of their own.
func (l *Lineage) Fields() []string {
	return slices.Sorted(maps.Keys(leaves(l.trees[len(l.trees)-1])))
}

// defaults are, for each field that has a default, the fields that the default is made of. The
// defaults themselves say so: each field is changed, and the VMI is defaulted again.
func (l *Lineage) defaults() map[string][]string {
	if l.from != nil {
		return l.from
	}
	l.from = map[string][]string{}
	last := len(l.trees) - 1
	set, defaulted := leaves(l.trees[last-1]), leaves(l.trees[last])
	for _, path := range slices.Sorted(maps.Keys(union(set, switches(set)))) {
		changed := map[string]bool{}
		for _, other := range otherValues(set[path]) {
			for _, field := range l.defaultedAnew(path, other, defaulted) {
				if _, isSet := set[field]; !isSet && !strings.HasPrefix(field, path) {
					changed[field] = true
				}
			}
		}
		for field := range changed {
			l.from[field] = append(l.from[field], path)
		}
	}
	return l.from
}

// switches are the switches of the devices that are not set, by which there are more devices or
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

// otherValues are what a field is changed to; nil takes it away, or is a switch that is not set.
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

// defaultedAnew returns the fields that have another value where one field has another.
func (l *Lineage) defaultedAnew(path string, value any, before map[string]any) []string {
	last := len(l.stages) - 1
	changed, ok := with(l.trees[last-1], steps(path), value)
	data, err := json.Marshal(changed)
	if err != nil || !ok {
		return nil
	}
	vmi := &v1.VirtualMachineInstance{}
	if json.Unmarshal(data, vmi) != nil {
		return nil // the field takes no such value
	}
	v1.Default(vmi)
	after := leaves(tree(vmi))
	var out []string
	for field, was := range before {
		if now, is := after[field]; !is || !reflect.DeepEqual(was, now) {
			out = append(out, field)
		}
	}
	return out
}

// leaves are the values of a tree that are neither lists nor objects, or are empty, by their
// paths.
func leaves(tree any) map[string]any {
	out := map[string]any{}
	var walk func(path string, value any)
	walk = func(path string, value any) {
		switch v := value.(type) {
		case map[string]any:
			for key, child := range v {
				below := path + "." + key
				if strings.ContainsAny(key, "./") {
					below = path + "[" + key + "]"
				}
				walk(strings.TrimPrefix(below, "."), child)
			}
			if len(v) > 0 {
				return
			}
		case []any:
			for i, child := range v {
				walk(path+"["+strconv.Itoa(i)+"]", child)
			}
			if len(v) > 0 {
				return
			}
		}
		out[path] = value
	}
	walk("", tree)
	return out
}

// at is the value at a path of a tree.
func at(tree any, path string) (any, bool) {
	for _, step := range steps(path) {
		switch v := tree.(type) {
		case map[string]any:
			child, ok := v[step]
			if !ok {
				return nil, false
			}
			tree = child
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(v) {
				return nil, false
			}
			tree = v[i]
		default:
			return nil, false
		}
	}
	return tree, true
}

// with is a copy of a tree with another value at a path; nil takes it away.
func with(tree any, path []string, value any) (any, bool) {
	if len(path) == 0 {
		return value, true
	}
	if tree == nil {
		tree = map[string]any{}
	}
	switch v := tree.(type) {
	case map[string]any:
		child, ok := with(v[path[0]], path[1:], value)
		out := map[string]any{}
		maps.Copy(out, v)
		if out[path[0]] = child; child == nil {
			delete(out, path[0])
		}
		return out, ok
	case []any:
		i, err := strconv.Atoi(path[0])
		if err != nil || i < 0 || i >= len(v) {
			return nil, false
		}
		child, ok := with(v[i], path[1:], value)
		out := slices.Clone(v)
		out[i] = child
		return out, ok
	}
	return nil, false
}
