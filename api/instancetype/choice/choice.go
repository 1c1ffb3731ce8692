// Package choice finds the instancetype and the preference that a VirtualMachine runs with.
package choice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeqemu/kubeqemu/api/instancetype"
	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// ErrMissing means that an object that a VM names does not exist, or is of another kind. No
// event tells when it comes.
var ErrMissing = errors.New("not found")

// Object is any Kubernetes object.
type Object interface {
	metav1.Object
	runtime.Object
}

// Get reads an object, past any cache: an instancetype, a preference, a ControllerRevision, or
// an object whose labels name an instancetype: a PersistentVolumeClaim, or an unstructured
// DataVolume, DataSource or VolumeSnapshot. The cluster may lack the kinds of the last three.
type Get func(ctx context.Context, key types.NamespacedName, into Object) error

// Found is an instancetype or a preference, and the reference to it for the VM's status. If the
// reference names no ControllerRevision, Object is as it is now.
type Found struct {
	Object Object
	Ref    *v1.InstancetypeStatusRef
}

// Choice is the instancetype and the preference that a VM runs with; either may be nil.
type Choice struct{ Instancetype, Preference *Found }

// Refs are the references for the VM's status.
func (c *Choice) Refs() (instancetype, preference *v1.InstancetypeStatusRef) {
	if c.Instancetype != nil {
		instancetype = c.Instancetype.Ref
	}
	if c.Preference != nil {
		preference = c.Preference.Ref
	}
	return instancetype, preference
}

func (c *Choice) size() *v1beta1.VirtualMachineInstancetypeSpec {
	if c.Instancetype == nil {
		return nil
	}
	switch o := c.Instancetype.Object.(type) {
	case *v1beta1.VirtualMachineInstancetype:
		return &o.Spec
	case *v1beta1.VirtualMachineClusterInstancetype:
		return &o.Spec
	}
	return nil
}

func (c *Choice) preference() *v1beta1.VirtualMachinePreferenceSpec {
	if c.Preference == nil {
		return nil
	}
	switch o := c.Preference.Object.(type) {
	case *v1beta1.VirtualMachinePreference:
		return &o.Spec
	case *v1beta1.VirtualMachineClusterPreference:
		return &o.Spec
	}
	return nil
}

// StorageClass is the storage class that the preference wants for claims that name none, or empty.
func (c *Choice) StorageClass() string {
	if p := c.preference(); p != nil && p.Volumes != nil {
		return p.Volumes.PreferredStorageClassName
	}
	return ""
}

// Expand is the VM with its instancetype and preference applied to the template. The errors are those of instancetype.Apply. The VM is
// not checked: see Check.
func (c *Choice) Expand(vm *v1.VirtualMachine) (*v1.VirtualMachine, field.ErrorList) {
	if c.Instancetype == nil && c.Preference == nil {
		return vm, nil
	}
	expanded, errs := instancetype.Expand(c.withoutMemory(vm), c.size(), c.preference())
	if len(errs) > 0 {
		return nil, errs
	}
	meta := &expanded.Spec.Template.ObjectMeta
	meta.Annotations = c.annotations(meta.Annotations)
	return expanded, nil
}

// Check returns the errors of a VM that Expand returned with its defaults, and what it lacks of its preference's requirements.
func (c *Choice) Check(expanded *v1.VirtualMachine) field.ErrorList {
	if c.Instancetype == nil && c.Preference == nil {
		return nil // it was validated as it is
	}
	return instancetype.Check(expanded, c.size(), c.preference())
}

// Lacks returns what a VM that Expand returned lacks of its preference's requirements.
func (c *Choice) Lacks(expanded *v1.VirtualMachine) field.ErrorList {
	return instancetype.Lacks(expanded, c.size(), c.preference())
}

// withoutMemory returns the VM without its template's memory, if that holds only where a volume names no instancetype, and the volume
// names one.
func (c *Choice) withoutMemory(vm *v1.VirtualMachine) *v1.VirtualMachine {
	if c.Instancetype == nil || c.Instancetype.Ref.InferFromVolume == "" || !ignores(c.Instancetype.Ref.InferFromVolumeFailurePolicy) {
		return vm
	}
	without := *vm
	without.Spec.Template.Spec.Domain.Memory = nil
	return &without
}

// ignores reports whether a policy has a VM without an instancetype or a preference if the volume names none.
func ignores(policy *v1.InferFromVolumeFailurePolicy) bool {
	return policy != nil && *policy == v1.IgnoreInferFromVolumeFailure
}

// annotations adds the names of the size and the preference, as KubeVirt does.
func (c *Choice) annotations(others map[string]string) map[string]string {
	names := map[string]string{
		"VirtualMachineInstancetype": "kubevirt.io/instancetype-name", "VirtualMachineClusterInstancetype": "kubevirt.io/cluster-instancetype-name",
		"VirtualMachinePreference": "kubevirt.io/preference-name", "VirtualMachineClusterPreference": "kubevirt.io/cluster-preference-name",
	}
	all := map[string]string{}
	maps.Copy(all, others)
	size, preference := c.Refs()
	for _, ref := range []*v1.InstancetypeStatusRef{size, preference} {
		if ref != nil {
			all[names[ref.Kind]] = ref.Name
		}
	}
	return all
}

// FindError says that one of the two could not be found.
type FindError struct {
	// Preference: it is the preference, not the instancetype.
	Preference bool
	err        error
}

func (e *FindError) Error() string { return e.err.Error() }

// Unwrap returns why.
func (e *FindError) Unwrap() error { return e.err }

// Find finds the instancetype and the preference that a VM runs with: the revisions that its
// status remembers of what the VM names, or else the objects as they are now. The error is a FindError, of the first
// that cannot be found; then the choice has the other one.
func Find(ctx context.Context, get Get, vm *v1.VirtualMachine) (*Choice, error) {
	c := &Choice{}
	var first error
	if m := instancetypeMatcher(vm); m != nil {
		found, err := m.find(ctx, get, vm)
		if c.Instancetype = found; err != nil {
			first = &FindError{err: err}
		}
	}
	if m := preferenceMatcher(vm); m != nil {
		found, err := m.find(ctx, get, vm)
		if c.Preference = found; err != nil && first == nil {
			first = &FindError{Preference: true, err: err}
		}
	}
	return c, first
}

// Settled reports whether a VM's status remembers revisions of all that the VM names, and of nothing else. Then Find needs to read nothing
// but those.
func Settled(vm *v1.VirtualMachine) bool {
	return instancetypeMatcher(vm).settled(vm.Status.InstancetypeRef) && preferenceMatcher(vm).settled(vm.Status.PreferenceRef)
}

func (m *matcher) settled(ref *v1.InstancetypeStatusRef) bool {
	switch {
	case m == nil || ref == nil:
		return m == nil && ref == nil
	case ref.ControllerRevisionRef == nil || m.revision != "" && m.revision != ref.ControllerRevisionRef.Name || ref.InferFromVolume != m.volume:
		return false
	}
	return m.volume != "" || ref.Name == m.name && ref.Kind == m.normalKind(m.kind)
}

// Infers reports whether a volume says what a VM's instancetype or preference is.
func Infers(vm *v1.VirtualMachine) bool {
	return vm.Spec.Instancetype != nil && vm.Spec.Instancetype.InferFromVolume != "" || vm.Spec.Preference != nil && vm.Spec.Preference.InferFromVolume != ""
}

// Each of these has the namespaced kind and the cluster-scoped one.
func instancetypeKinds() []string {
	return []string{"VirtualMachineInstancetype", "VirtualMachineClusterInstancetype"}
}
func preferenceKinds() []string {
	return []string{"VirtualMachinePreference", "VirtualMachineClusterPreference"}
}

// matcher is an InstancetypeMatcher or a PreferenceMatcher.
type matcher struct {
	what string // "instancetype" or "preference"
	// kinds are the namespaced kind and the cluster-scoped one.
	kinds      []string
	name, kind string
	revision   string
	volume     string
	policy     *v1.InferFromVolumeFailurePolicy
	remembered *v1.InstancetypeStatusRef
	// memory is the annotation that says by which volume the VM was named.
	memory string
}

// withMemory returns a matcher of a VM with what the VM's annotation says.
func withMemory(vm *v1.VirtualMachine, m *matcher) *matcher {
	annotation, _ := m.inferred("")
	m.memory = vm.Annotations[annotation]
	return m
}

func instancetypeMatcher(vm *v1.VirtualMachine) *matcher {
	if vm == nil || vm.Spec.Instancetype == nil {
		return nil
	}
	m := vm.Spec.Instancetype
	return withMemory(vm, &matcher{what: "instancetype", kinds: instancetypeKinds(),
		name: m.Name, kind: m.Kind, revision: m.RevisionName, volume: m.InferFromVolume, policy: m.InferFromVolumeFailurePolicy,
		remembered: vm.Status.InstancetypeRef})
}

func preferenceMatcher(vm *v1.VirtualMachine) *matcher {
	if vm == nil || vm.Spec.Preference == nil {
		return nil
	}
	m := vm.Spec.Preference
	return withMemory(vm, &matcher{what: "preference", kinds: preferenceKinds(),
		name: m.Name, kind: m.Kind, revision: m.RevisionName, volume: m.InferFromVolume, policy: m.InferFromVolumeFailurePolicy,
		remembered: vm.Status.PreferenceRef})
}

// normalKind returns the kind of an instancetype or a preference as the API server spells it. A manifest may spell it
// in lower case or in the plural. Any other word means the cluster-scoped kind.
func (m *matcher) normalKind(kind string) string {
	for _, k := range m.kinds {
		if s := strings.ToLower(kind); s == strings.ToLower(k) || s == strings.ToLower(k)+"s" {
			return k
		}
	}
	return m.kinds[1]
}

// find returns the object that the matcher means, or nil if it means none.
func (m *matcher) find(ctx context.Context, get Get, vm *v1.VirtualMachine) (*Found, error) {
	ref := &v1.InstancetypeStatusRef{Name: m.name, Kind: m.normalKind(m.kind), InferFromVolume: m.volume, InferFromVolumeFailurePolicy: m.policy}
	if old := m.remembered; m.volume != "" && old != nil && old.InferFromVolume == m.volume && old.ControllerRevisionRef != nil {
		// The labels are not read again. They may have changed, and a migration may have copied the disk to a claim that
		// has no labels.
		ref.Name, ref.Kind = old.Name, old.Kind
	} else if m.volume != "" {
		name, kind, err := m.infer(ctx, get, vm)
		if err != nil {
			return nil, err
		}
		if name == "" {
			return nil, nil
		}
		ref.Name, ref.Kind = name, m.normalKind(kind)
	}
	revision := m.revision
	if old := m.remembered; revision == "" && old != nil && old.Name == ref.Name && old.Kind == ref.Kind && old.ControllerRevisionRef != nil {
		revision = old.ControllerRevisionRef.Name
	}
	found := &Found{newObject(ref.Kind), ref}
	if revision != "" {
		ref.ControllerRevisionRef = &v1.ControllerRevisionRef{Name: revision}
		if err := revisionInto(ctx, get, vm.Namespace, revision, ref.Kind, found.Object); err != nil {
			return nil, err
		}
		return found, nil
	}
	key := types.NamespacedName{Name: ref.Name}
	if ref.Kind == m.kinds[0] {
		key.Namespace = vm.Namespace
	}
	if err := get(ctx, key, found.Object); err != nil {
		return nil, missing(err, ref.Kind, key.Name)
	}
	return found, nil
}

func newObject(kind string) Object {
	switch kind {
	case "VirtualMachineInstancetype":
		return &v1beta1.VirtualMachineInstancetype{}
	case "VirtualMachineClusterInstancetype":
		return &v1beta1.VirtualMachineClusterInstancetype{}
	case "VirtualMachinePreference":
		return &v1beta1.VirtualMachinePreference{}
	default:
		return &v1beta1.VirtualMachineClusterPreference{}
	}
}

// missing turns NotFound into ErrMissing: a user must make the object. An instancetype or a preference has its resource's name in the
// text, as the API server has it: KubeVirt's clients look for that.
func missing(err error, kind, name string) error {
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("get %s %q: %w", kind, name, err)
	}
	if slices.Contains(slices.Concat(instancetypeKinds(), preferenceKinds()), kind) {
		kind = strings.ToLower(kind) + "s." + v1beta1.GroupVersion.Group
	}
	return fmt.Errorf("%s %q %w", kind, name, ErrMissing)
}

// revisionInto decodes the object in a ControllerRevision.
func revisionInto(ctx context.Context, get Get, namespace, name, kind string, object Object) error {
	revision := &appsv1.ControllerRevision{}
	if err := get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, revision); err != nil {
		return missing(err, "ControllerRevision", name)
	}
	var meta metav1.TypeMeta
	if err := json.Unmarshal(revision.Data.Raw, &meta); err != nil || meta.GroupVersionKind() != v1beta1.GroupVersion.WithKind(kind) {
		return fmt.Errorf("ControllerRevision %q is of %s, %s of %s %w", name, meta.GroupVersionKind(), kind, v1beta1.GroupVersion, ErrMissing)
	}
	if err := json.Unmarshal(revision.Data.Raw, object); err != nil {
		return fmt.Errorf("decode ControllerRevision %q: %w", name, err)
	}
	return nil
}
