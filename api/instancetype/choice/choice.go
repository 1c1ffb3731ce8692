// Package choice finds the instancetype and the preference that a VirtualMachine runs with.
package choice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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

// Expand is the VM with its instancetype and preference applied to the template. The errors are
// those of that template with its defaults.
func (c *Choice) Expand(vm *v1.VirtualMachine) (*v1.VirtualMachine, field.ErrorList) {
	if c.Instancetype == nil && c.Preference == nil {
		return vm, nil // it was validated as it is
	}
	expanded, errs := instancetype.Expand(vm, c.size(), c.preference())
	if len(errs) > 0 {
		return nil, errs
	}
	meta := &expanded.Spec.Template.ObjectMeta
	meta.Annotations = c.annotations(meta.Annotations)
	return expanded, nil
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

// Find finds the instancetype and the preference that a VM runs with: the revisions that its
// status remembers of what the VM names, or else the objects as they are now.
func Find(ctx context.Context, get Get, vm *v1.VirtualMachine) (*Choice, error) {
	c := &Choice{}
	var err error
	if m := instancetypeMatcher(vm); m != nil {
		if c.Instancetype, err = m.find(ctx, get, vm); err != nil {
			return nil, err
		}
	}
	if m := preferenceMatcher(vm); m != nil {
		if c.Preference, err = m.find(ctx, get, vm); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// matcher is an InstancetypeMatcher or a PreferenceMatcher.
type matcher struct {
	what string // "instancetype" or "preference"
	// kinds are the namespaced kind and the cluster-scoped one.
	kinds      [2]string
	name, kind string
	revision   string
	volume     string
	policy     *v1.InferFromVolumeFailurePolicy
	remembered *v1.InstancetypeStatusRef
}

func instancetypeMatcher(vm *v1.VirtualMachine) *matcher {
	m := vm.Spec.Instancetype
	if m == nil {
		return nil
	}
	return &matcher{what: "instancetype", kinds: [2]string{"VirtualMachineInstancetype", "VirtualMachineClusterInstancetype"},
		name: m.Name, kind: m.Kind, revision: m.RevisionName, volume: m.InferFromVolume, policy: m.InferFromVolumeFailurePolicy,
		remembered: vm.Status.InstancetypeRef}
}

func preferenceMatcher(vm *v1.VirtualMachine) *matcher {
	m := vm.Spec.Preference
	if m == nil {
		return nil
	}
	return &matcher{what: "preference", kinds: [2]string{"VirtualMachinePreference", "VirtualMachineClusterPreference"},
		name: m.Name, kind: m.Kind, revision: m.RevisionName, volume: m.InferFromVolume, policy: m.InferFromVolumeFailurePolicy,
		remembered: vm.Status.PreferenceRef}
}

// normalKind is the kind as the API server knows it. In manifests it may be in any case, or the
// plural.
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
	if old := m.remembered; m.volume != "" && old != nil && old.InferFromVolume == m.volume && old.ControllerRevisionRef != nil && moved(vm, m.volume) {
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
		return found, revisionInto(ctx, get, vm.Namespace, revision, ref.Kind, found.Object)
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

// moved says whether a migration has copied a volume's disk to another claim. Then the DataVolume and the claim that said what to
// infer are gone.
func moved(vm *v1.VirtualMachine, volume string) bool {
	for i := range vm.Spec.Template.Spec.Volumes {
		v := &vm.Spec.Template.Spec.Volumes[i]
		if claim := v.Claim(); v.Name == volume && claim != nil {
			return vm.Status.HeldBy(claim.Name) != claim.Name
		}
	}
	return false
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

// missing turns NotFound into ErrMissing: a user must make the object.
func missing(err error, kind, name string) error {
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%s %q %w", kind, name, ErrMissing)
	}
	return fmt.Errorf("get %s %q: %w", kind, name, err)
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
