package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeqemu/kubeqemu/api/instancetype"
	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// errMissing: something that a VM names is not there, or is not what it names.
// Nothing tells when it comes.
var errMissing = errors.New("not found")

// chosen is the size and the preference that a VM is started with; either may
// be nil. The references are the status's.
type chosen struct {
	size                           *v1beta1.VirtualMachineInstancetypeSpec
	preference                     *v1beta1.VirtualMachinePreferenceSpec
	instancetypeRef, preferenceRef *v1.InstancetypeStatusRef
}

// remembered says whether the status has the references already.
func (c *chosen) remembered(status *v1.VirtualMachineStatus) bool {
	return equality.Semantic.DeepEqual(c.instancetypeRef, status.InstancetypeRef) && equality.Semantic.DeepEqual(c.preferenceRef, status.PreferenceRef)
}

// matcher is an InstancetypeMatcher or a PreferenceMatcher.
type matcher struct {
	what string // "instancetype" or "preference"
	// kinds are the one of the namespace and that of the cluster.
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

// normalKind is the kind as the API server knows it: in manifests it is in any
// case, and may be the plural.
func (m *matcher) normalKind(kind string) string {
	for _, k := range m.kinds {
		if s := strings.ToLower(kind); s == strings.ToLower(k) || s == strings.ToLower(k)+"s" {
			return k
		}
	}
	return m.kinds[1]
}

// choose finds out what a VM is started with. What was found at its first start
// is kept in ControllerRevisions of its own, so that a machine stays what it is
// when somebody changes an instancetype.
func (r *Reconciler) choose(ctx context.Context, vm *v1.VirtualMachine) (*chosen, error) {
	c := &chosen{}
	if m := instancetypeMatcher(vm); m != nil {
		object, ref, err := r.find(ctx, vm, m)
		if err != nil {
			return nil, err
		}
		switch o := object.(type) {
		case *v1beta1.VirtualMachineInstancetype:
			c.size = &o.Spec
		case *v1beta1.VirtualMachineClusterInstancetype:
			c.size = &o.Spec
		}
		c.instancetypeRef = ref
	}
	if m := preferenceMatcher(vm); m != nil {
		object, ref, err := r.find(ctx, vm, m)
		if err != nil {
			return nil, err
		}
		switch o := object.(type) {
		case *v1beta1.VirtualMachinePreference:
			c.preference = &o.Spec
		case *v1beta1.VirtualMachineClusterPreference:
			c.preference = &o.Spec
		}
		c.preferenceRef = ref
	}
	return c, nil
}

// expand is the VM with its size and its preference in the template. The errors
// are of the template as it would be with its defaults.
func (c *chosen) expand(vm *v1.VirtualMachine) (*v1.VirtualMachine, field.ErrorList) {
	if c.size == nil && c.preference == nil {
		return vm, nil // it was validated as it is
	}
	expanded, errs := instancetype.Expand(vm, c.size, c.preference)
	if len(errs) > 0 {
		return nil, errs
	}
	meta := &expanded.Spec.Template.ObjectMeta
	meta.Annotations = c.annotations(meta.Annotations)
	return expanded, nil
}

// annotations adds the names of the size and the preference, as KubeVirt does.
func (c *chosen) annotations(others map[string]string) map[string]string {
	names := map[string]string{
		"VirtualMachineInstancetype": "kubevirt.io/instancetype-name", "VirtualMachineClusterInstancetype": "kubevirt.io/cluster-instancetype-name",
		"VirtualMachinePreference": "kubevirt.io/preference-name", "VirtualMachineClusterPreference": "kubevirt.io/cluster-preference-name",
	}
	all := map[string]string{}
	maps.Copy(all, others)
	for _, ref := range []*v1.InstancetypeStatusRef{c.instancetypeRef, c.preferenceRef} {
		if ref != nil {
			all[names[ref.Kind]] = ref.Name
		}
	}
	return all
}

// find returns what the matcher means, or nil where that is nothing.
func (r *Reconciler) find(ctx context.Context, vm *v1.VirtualMachine, m *matcher) (client.Object, *v1.InstancetypeStatusRef, error) {
	ref := &v1.InstancetypeStatusRef{Name: m.name, Kind: m.normalKind(m.kind), InferFromVolume: m.volume, InferFromVolumeFailurePolicy: m.policy}
	if m.volume != "" {
		name, kind, err := r.infer(ctx, vm, m)
		if err != nil {
			return nil, nil, err
		}
		if name == "" {
			return nil, nil, nil
		}
		ref.Name, ref.Kind = name, m.normalKind(kind)
	}
	revision := m.revision
	if old := m.remembered; revision == "" && old != nil && old.Name == ref.Name && old.Kind == ref.Kind && old.ControllerRevisionRef != nil {
		revision = old.ControllerRevisionRef.Name
	}
	object := newObject(ref.Kind)
	if revision != "" {
		ref.ControllerRevisionRef = &v1.ControllerRevisionRef{Name: revision}
		return object, ref, r.revisionInto(ctx, vm.Namespace, revision, ref.Kind, object)
	}
	key := client.ObjectKey{Name: ref.Name}
	if ref.Kind == m.kinds[0] {
		key.Namespace = vm.Namespace
	}
	if err := r.Live.Get(ctx, key, object); err != nil {
		return nil, nil, missing(err, ref.Kind, key.Name)
	}
	revision, err := r.keep(ctx, vm, object, ref.Kind)
	ref.ControllerRevisionRef = &v1.ControllerRevisionRef{Name: revision}
	return object, ref, err
}

func newObject(kind string) client.Object {
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

// missing marks the error of a get: that something is not there is for somebody
// else to change.
func missing(err error, kind, name string) error {
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%s %q %w", kind, name, errMissing)
	}
	return fmt.Errorf("get %s %q: %w", kind, name, err)
}

// Labels of claims by which a volume says what it is to be run with, KubeVirt's.
const inferLabel = "instancetype.kubevirt.io/default-"

// infer asks a volume's claim. No name and no error mean that the volume says
// nothing, and that this is no harm.
func (r *Reconciler) infer(ctx context.Context, vm *v1.VirtualMachine, m *matcher) (name, kind string, err error) {
	defer func() {
		if errors.Is(err, errMissing) && m.policy != nil && *m.policy == v1.IgnoreInferFromVolumeFailure {
			name, kind, err = "", "", nil
		}
	}()
	claim := ""
	for _, volume := range vm.Spec.Template.Spec.Volumes {
		if source := volume.Claim(); volume.Name == m.volume && source != nil && !source.Overlay {
			claim = source.Name
		}
	}
	if claim == "" {
		return "", "", fmt.Errorf("infer %s: a volume %q with a persistentVolumeClaim or a dataVolume is %w", m.what, m.volume, errMissing)
	}
	pvc := &corev1.PersistentVolumeClaim{}
	if err := r.Live.Get(ctx, client.ObjectKey{Namespace: vm.Namespace, Name: claim}, pvc); err != nil {
		return "", "", fmt.Errorf("infer %s from volume %q: %w", m.what, m.volume, missing(err, "PersistentVolumeClaim", claim))
	}
	name = pvc.Labels[inferLabel+m.what]
	if name == "" {
		return "", "", fmt.Errorf("infer %s from volume %q: label %s of PersistentVolumeClaim %q is %w", m.what, m.volume, inferLabel+m.what, claim, errMissing)
	}
	return name, pvc.Labels[inferLabel+m.what+"-kind"], nil
}

// keep writes what an object is into a ControllerRevision of the VM's, and
// returns its name. It is the same for the same VM and generation of the object.
func (r *Reconciler) keep(ctx context.Context, vm *v1.VirtualMachine, object client.Object, objectKind string) (string, error) {
	object.SetManagedFields(nil)
	object.SetAnnotations(nil)
	object.GetObjectKind().SetGroupVersionKind(v1beta1.GroupVersion.WithKind(objectKind))
	data, err := json.Marshal(object)
	if err != nil {
		return "", fmt.Errorf("encode %s %q: %w", objectKind, object.GetName(), err)
	}
	revision := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: vm.Namespace,
			Name:      revisionName(vm, object),
			Labels: map[string]string{
				"instancetype.kubevirt.io/object-kind":    objectKind,
				"instancetype.kubevirt.io/object-uid":     string(object.GetUID()),
				"instancetype.kubevirt.io/object-version": v1beta1.GroupVersion.Version,
			},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.GroupVersion.WithKind("VirtualMachine"))},
		},
		Data:     runtime.RawExtension{Raw: data},
		Revision: object.GetGeneration(),
	}
	if err := r.Client.Create(ctx, revision); err != nil && !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("keep %s %q in a ControllerRevision: %w", objectKind, object.GetName(), err)
	}
	return revision.Name, nil
}

// revisionName is KubeVirt's form, cut to what a name may have; the UIDs tell
// the names apart.
func revisionName(vm *v1.VirtualMachine, object client.Object) string {
	const most = 253
	tail := fmt.Sprintf("-%s-%s-%s-%d", v1beta1.GroupVersion.Version, vm.UID, object.GetUID(), object.GetGeneration())
	head := vm.Name + "-" + object.GetName()
	return strings.TrimRight(head[:min(len(head), most-len(tail))], ".-") + tail
}

// revisionInto decodes what a ControllerRevision holds.
func (r *Reconciler) revisionInto(ctx context.Context, namespace, name, kind string, object client.Object) error {
	revision := &appsv1.ControllerRevision{}
	if err := r.Live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, revision); err != nil {
		return missing(err, "ControllerRevision", name)
	}
	var meta metav1.TypeMeta
	if err := json.Unmarshal(revision.Data.Raw, &meta); err != nil || meta.GroupVersionKind() != v1beta1.GroupVersion.WithKind(kind) {
		return fmt.Errorf("ControllerRevision %q is of %s, %s of %s %w", name, meta.GroupVersionKind(), kind, v1beta1.GroupVersion, errMissing)
	}
	if err := json.Unmarshal(revision.Data.Raw, object); err != nil {
		return fmt.Errorf("decode ControllerRevision %q: %w", name, err)
	}
	return nil
}
