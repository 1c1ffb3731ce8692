package manifest

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/kubeqemu/kubeqemu/api/instancetype"
	poolv1beta1 "github.com/kubeqemu/kubeqemu/api/pool/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/api/validation"
)

// UID stands for the UID that the API server would give an object. UUID, serial number and
// MACs are computed from the UID.
const UID = "00000000-0000-4000-8000-000000000000"

// ErrNone means that an input has no object that the package makes a VMI of.
var ErrNone = errors.New("there is no VirtualMachineInstance, nor an object that makes one")

// Instance is a VMI, and the document that it was made of.
type Instance struct {
	*v1.VirtualMachineInstance
	Document Document

	spec   string  // the path of the VMI's spec in the document
	stages []stage // from the document to the VMI
}

// Instances returns the VMIs that the documents make, in the order of the documents.
// Documents of other kinds make none. All errors are returned at once.
func (s Set) Instances() ([]Instance, error) {
	var found []Instance
	var problems []error
	// What VMs name is looked up among the rest: with the VMs, many of them would take the square of their number.
	rest := s.rest()
	for _, d := range s {
		if d.unread != nil {
			continue // Warnings tells
		}
		i, err := rest.instance(d)
		switch {
		case err != nil:
			problems = append(problems, err)
		case i.VirtualMachineInstance != nil:
			found = append(found, i)
		}
	}
	return found, errors.Join(problems...)
}

// Warnings returns what the VMI asks for and gets otherwise, as virt-api says it when the object is applied.
func (i Instance) Warnings() []string {
	metadata := field.NewPath(strings.TrimSuffix(i.spec, "spec") + "metadata")
	own := i.stages[0].vmi.Annotations // without those of an instancetype or a preference
	return append(validation.AnnotationWarnings(own, metadata.Child("annotations")), validation.Warnings(&i.Spec, field.NewPath(i.spec))...)
}

// rest returns the documents of which no VMIs are made.
func (s Set) rest() Set {
	return slices.DeleteFunc(slices.Clone(s), func(d Document) bool { return slices.Contains(kinds, d.Kind) })
}

// instance makes a document's VMI, and looks up in the set what the document names. The VMI is nil for other kinds.
func (s Set) instance(d Document) (Instance, error) {
	i := Instance{Document: d, spec: "spec.template.spec"}
	var err error
	switch d.presentKind() {
	case v1.VirtualMachineInstanceGroupVersionKind:
		i.VirtualMachineInstance, i.spec = &v1.VirtualMachineInstance{}, "spec"
		if err = d.decode(i.VirtualMachineInstance); err == nil {
			i.stages, err = s.filled(i)
		}
	case v1.VirtualMachineGroupVersionKind:
		i.VirtualMachineInstance, i.stages, err = s.ofVirtualMachine(d)
	case v1.VirtualMachineInstanceReplicaSetGroupVersionKind:
		if i.VirtualMachineInstance, err = ofReplicaSet(d); err == nil {
			i.stages, err = s.filled(i)
		}
	case poolv1beta1.VirtualMachinePoolGroupVersionKind:
		i.spec = "spec.virtualMachineTemplate.spec.template.spec"
		i.VirtualMachineInstance, i.stages, err = s.ofPool(d)
	default:
		return Instance{}, d.passedOver()
	}
	if err != nil {
		return Instance{}, err
	}
	if err := d.named(); err != nil {
		return Instance{}, err
	}
	i.Namespace = d.namespace()
	if i.UID == "" {
		i.UID = UID
	}
	return i, nil
}

// presentKind returns the kind in the present version. An object of an older version is the same.
func (d Document) presentKind() schema.GroupVersionKind {
	kind := d.GroupVersionKind()
	switch kind.GroupVersion() {
	case schema.GroupVersion{Group: v1.GroupVersion.Group, Version: v1.OlderVersion}:
		return v1.GroupVersion.WithKind(kind.Kind)
	case schema.GroupVersion{Group: poolv1beta1.GroupVersion.Group, Version: poolv1beta1.OlderVersion}:
		return poolv1beta1.GroupVersion.WithKind(kind.Kind)
	}
	return kind
}

// namespace returns that of the document's object.
func (d Document) namespace() string {
	if d.Namespace == "" {
		return metav1.NamespaceDefault
	}
	return d.Namespace
}

// named checks the object's name and namespace. Both stand in QEMU's arguments.
func (d Document) named() error {
	path := field.NewPath("metadata")
	var errs field.ErrorList
	if d.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), "the arguments hold the name, and the API server alone can make a name of generateName"))
	} else if problems := utilvalidation.IsDNS1123Subdomain(d.Name); len(problems) > 0 {
		errs = append(errs, field.Invalid(path.Child("name"), d.Name, problems[0]))
	}
	if problems := utilvalidation.IsDNS1123Label(d.namespace()); len(problems) > 0 {
		errs = append(errs, field.Invalid(path.Child("namespace"), d.Namespace, problems[0]))
	}
	return d.invalid(errs)
}

// kinds are the kinds that VMIs are made of.
var kinds = []string{"VirtualMachineInstance", "VirtualMachine", "VirtualMachineInstanceReplicaSet", "VirtualMachinePool"}

// kindsOf are all kinds of the API groups that VMs are of.
var kindsOf = map[string][]string{
	v1.GroupVersion.Group: {"KubeVirt", "VirtualMachine", "VirtualMachineInstance", "VirtualMachineInstanceMigration",
		"VirtualMachineInstancePreset", "VirtualMachineInstanceReplicaSet"},
	poolv1beta1.GroupVersion.Group: {"VirtualMachinePool"},
}

// isOurs reports whether VMs are of an API group.
func isOurs(group string) bool { return len(kindsOf[group]) > 0 }

// passedOver returns an error where a document of another kind may hold VMs after all.
func (d Document) passedOver() error {
	group := d.GroupVersionKind().Group
	switch {
	case d.Kind == "List" && group == "":
		return d.problem("items", "a List within a List, or of an apiVersion other than v1, is not read: write its items as documents of their own")
	case slices.Contains(kinds, d.Kind) && isOurs(group):
		return d.problem("apiVersion", fmt.Sprintf("the version %s is not supported: want %s or %s", d.APIVersion, v1.GroupVersion, poolv1beta1.GroupVersion))
	case isOurs(group) && !slices.Contains(kindsOf[group], d.Kind):
		return d.problem("kind", fmt.Sprintf("the group %s has no kind %q: want one of %s", group, d.Kind, strings.Join(kindsOf[group], ", ")))
	}
	return nil
}

// IsObject reports whether text names an object as Instance.Object does.
func IsObject(text string) bool {
	kind, name, ok := strings.Cut(text, " ")
	return ok && slices.Contains(kinds, kind) && strings.Count(name, "/") == 1
}

// Invalid returns the errors of a VMI as errors of the document that the VMI was made of.
func (i Instance) Invalid(errs field.ErrorList) error {
	for _, e := range errs {
		if rest, ok := strings.CutPrefix(e.Field, "spec"); ok {
			e.Field = i.spec + rest
		}
	}
	return i.Document.invalid(errs)
}

func (d Document) invalid(errs field.ErrorList) error {
	var problems []error
	for _, e := range errs[:min(len(errs), maxProblems)] {
		problems = append(problems, d.problem(e.Field, e.Error()))
	}
	return errors.Join(append(problems, d.more(len(errs)))...)
}

// ofVirtualMachine returns the VMI that a VM is started as.
func (s Set) ofVirtualMachine(d Document) (*v1.VirtualMachineInstance, []stage, error) {
	vm := &v1.VirtualMachine{}
	if err := d.decodeTemplate(vm); err != nil {
		return nil, nil, err
	}
	return s.start(d, vm, "")
}

// ofPool returns the VMI of a pool's first VM.
func (s Set) ofPool(d Document) (*v1.VirtualMachineInstance, []stage, error) {
	pool := &poolv1beta1.VirtualMachinePool{}
	if err := d.decodeTemplate(pool); err != nil {
		return nil, nil, err
	}
	if errs := poolv1beta1.Validate(pool); len(errs) > 0 {
		return nil, nil, d.invalid(errs)
	}
	first := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: pool.Name + "-0", Namespace: pool.Namespace}, Spec: pool.Spec.VirtualMachineTemplate.Spec}
	return s.start(d, first, "spec.virtualMachineTemplate.")
}

// start returns the VMI that a VM is started as, and the stages on the way. prefix is the path
// of the VM in the document.
func (s Set) start(d Document, vm *v1.VirtualMachine, prefix string) (*v1.VirtualMachineInstance, []stage, error) {
	if vm.UID == "" {
		vm.UID = UID
	}
	size, sizeDocument, err := s.size(d.namespace(), vm.Spec.Instancetype)
	if err != nil {
		return nil, nil, d.at(prefix+"spec.instancetype", err)
	}
	preference, preferenceDocument, err := s.preference(d.namespace(), vm.Spec.Preference)
	if err != nil {
		return nil, nil, d.at(prefix+"spec.preference", err)
	}
	expanded, errs := instancetype.ExpandChecked(vm, size, preference)
	if len(errs) > 0 {
		for _, e := range errs {
			e.Field = prefix + e.Field
		}
		return nil, nil, d.invalid(errs)
	}
	started := expanded.Draft(false)
	stages := append(expansion{vm, expanded, size, preference, sizeDocument, preferenceDocument}.stages(), d.machine(expanded, started)...)
	filled, err := s.fill(d, started, prefix+"spec.template.spec")
	if err != nil {
		return nil, nil, err
	}
	stages = append(stages, withMetadataOf(ofTemplate(expanded), filled)...)
	expanded.Identify(started, &v1.KubeVirtConfiguration{})
	return started, append(stages, identity(stages[len(stages)-1].vmi, started)...), nil
}

// at returns an error of a field that names another document: that document's own error says where it is.
func (d Document) at(path string, err error) error {
	if own := new(Error); errors.As(err, &own) {
		return err
	}
	return d.problem(path, err.Error())
}

// ofReplicaSet returns a VMI as the ReplicaSet makes them. It has the ReplicaSet's name.
func ofReplicaSet(d Document) (*v1.VirtualMachineInstance, error) {
	rs := &v1.VirtualMachineInstanceReplicaSet{}
	if err := d.decodeTemplate(rs); err != nil {
		return nil, err
	}
	if errs := validation.ValidateVirtualMachineInstanceReplicaSet(rs); len(errs) > 0 {
		return nil, d.invalid(errs)
	}
	template := rs.Spec.Template
	return &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: rs.Name, Namespace: rs.Namespace,
		Labels: template.ObjectMeta.Labels, Annotations: template.ObjectMeta.Annotations}, Spec: template.Spec}, nil
}

// templates are the paths of the metadata that a template has, of whose fields the API server takes any, and
// nobody looks at more than those of the types: tools write creationTimestamp: null. * is each entry of a list.
var templates = map[string]reflect.Type{
	"spec.template.metadata":                                          reflect.TypeFor[v1.TemplateMeta](),
	"spec.dataVolumeTemplates.*.metadata":                             reflect.TypeFor[v1.DataVolumeTemplateMeta](),
	"spec.virtualMachineTemplate.metadata":                            reflect.TypeFor[v1.TemplateMeta](),
	"spec.virtualMachineTemplate.spec.template.metadata":              reflect.TypeFor[v1.TemplateMeta](),
	"spec.virtualMachineTemplate.spec.dataVolumeTemplates.*.metadata": reflect.TypeFor[v1.DataVolumeTemplateMeta](),
}

// decodeTemplate decodes an object with templates. It drops what their metadata may hold and nobody looks at.
func (d Document) decodeTemplate(into any) error {
	tree := map[string]any{}
	if err := sigsyaml.UnmarshalStrict(d.data, &tree); err != nil {
		return d.decode(into) // whose error says where
	}
	for path, of := range templates {
		known := fieldsOf(of)
		for _, meta := range objectsAt(tree, strings.Split(path, ".")) {
			maps.DeleteFunc(meta, func(key string, _ any) bool { return !slices.Contains(known, key) })
		}
	}
	plain, err := sigsyaml.Marshal(tree)
	if err != nil {
		return fmt.Errorf("write %s %q again: %w", d.Kind, d.Name, err)
	}
	return d.decodeData(plain, into)
}

// fieldsOf returns the names of a struct's fields in JSON.
func fieldsOf(of reflect.Type) []string {
	var names []string
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

// objectsAt returns the objects at a path of a tree.
func objectsAt(tree any, path []string) []map[string]any {
	switch node := tree.(type) {
	case map[string]any:
		if len(path) == 0 {
			return []map[string]any{node}
		}
		return objectsAt(node[path[0]], path[1:])
	case []any:
		var out []map[string]any
		if len(path) > 0 && path[0] == "*" {
			for _, entry := range node {
				out = append(out, objectsAt(entry, path[1:])...)
			}
		}
		return out
	}
	return nil
}
