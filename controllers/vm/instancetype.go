package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeqemu/kubeqemu/api/instancetype/choice"
	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// remembered reports whether the status already has the choice.
func remembered(c *choice.Choice, status *v1.VirtualMachineStatus) bool {
	instancetype, preference := c.Refs()
	return equality.Semantic.DeepEqual(instancetype, status.InstancetypeRef) &&
		equality.Semantic.DeepEqual(preference, status.PreferenceRef)
}

// wantsChoice reports whether a VM that does not start now gets what it names into its status. As in KubeVirt,
// it gets that as soon as it names it. What is changed or deleted later has no effect then, even before the
// first start.
func wantsChoice(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) bool {
	switch {
	case choice.Settled(vm):
		return false
	case !choice.Infers(vm):
		return true
	}
	// A volume may name nothing, and then nothing is remembered. So it is looked at for a VM without a guest only,
	// and once virt-controller has made the disk.
	return vmi == nil && (len(vm.Spec.DataVolumeTemplates) == 0 ||
		vm.Annotations[v1.ImmediateDataVolumeCreationAnnotation] != "false")
}

// findReason returns KubeVirt's reason for an instancetype or a preference that is not found. For another
// failure it returns otherwise.
func findReason(err error, otherwise string) string {
	var find *choice.FindError
	switch {
	case !errors.As(err, &find):
		return otherwise
	case find.Preference:
		return v1.ReasonFailedFindPreference
	}
	return v1.ReasonFailedFindInstancetype
}

// expand returns the VM with its instancetype and its preference filled in, from which a guest is started, or
// what is wrong with that VM.
func expand(chosen *choice.Choice, vm *v1.VirtualMachine) (*v1.VirtualMachine, field.ErrorList) {
	expanded, errs := chosen.Expand(vm)
	if len(errs) == 0 {
		errs = chosen.Check(expanded)
	}
	return expanded, errs
}

// choose finds the instancetype and the preference of a VM. The first time it copies them into
// ControllerRevisions of the VM. So the VM's machine does not change when somebody changes an instancetype.
func (r *Reconciler) choose(ctx context.Context, vm *v1.VirtualMachine) (*choice.Choice, error) {
	chosen, err := choice.Find(ctx, func(ctx context.Context, key types.NamespacedName, into choice.Object) error {
		return r.Live.Get(ctx, key, into)
	}, withoutTemplates(vm))
	if err != nil {
		return nil, err
	}
	for _, found := range []*choice.Found{chosen.Instancetype, chosen.Preference} {
		if found == nil || found.Ref.ControllerRevisionRef != nil {
			continue
		}
		revision, err := r.recordRevision(ctx, vm, found.Object, found.Ref.Kind)
		if err != nil {
			return nil, err
		}
		found.Ref.ControllerRevisionRef = &v1.ControllerRevisionRef{Name: revision}
	}
	return chosen, nil
}

// withoutTemplates returns the VM without its DataVolumeTemplates. Their DataVolumes exist by now, and what
// those are cloned from was checked. A template may have been changed since its DataVolume was made.
func withoutTemplates(vm *v1.VirtualMachine) *v1.VirtualMachine {
	without := *vm
	without.Spec.DataVolumeTemplates = nil
	return &without
}

// recordRevision copies an object into a ControllerRevision of the VM, and returns the revision's name. The
// same VM and generation of the object always have the same name.
func (r *Reconciler) recordRevision(ctx context.Context, vm *v1.VirtualMachine, object client.Object,
	objectKind string) (string, error) {
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
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)},
		},
		Data:     runtime.RawExtension{Raw: data},
		Revision: object.GetGeneration(),
	}
	err = r.Client.Create(ctx, revision)
	if apierrors.IsAlreadyExists(err) {
		err = r.isRecorded(ctx, revision)
	}
	if err != nil {
		return "", fmt.Errorf("keep %s %q in a ControllerRevision: %w", objectKind, object.GetName(), err)
	}
	return revision.Name, nil
}

// errOtherRevision means that a ControllerRevision with the name of the VM's is not what the VM would have made.
var errOtherRevision = errors.New("found existing ControllerRevision with unexpected data")

// isRecorded returns nil if the ControllerRevision that is there is the one that is wanted.
func (r *Reconciler) isRecorded(ctx context.Context, want *appsv1.ControllerRevision) error {
	there := &appsv1.ControllerRevision{}
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(want), there)
	if apierrors.IsNotFound(err) { // somebody has deleted it just now
		return errBehind
	}
	if err != nil {
		return err
	}
	if !sameOwner(there, want) || !sameSpec(there, want) {
		return fmt.Errorf("%w: ask somebody who may delete ControllerRevisions, such as an administrator, to delete %q",
			errOtherRevision, want.Name)
	}
	return nil
}

// sameOwner reports whether a ControllerRevision goes with the same VM as the one that is wanted.
func sameOwner(there, want *appsv1.ControllerRevision) bool {
	has, wanted := metav1.GetControllerOf(there), metav1.GetControllerOf(want)
	return has != nil && wanted != nil && has.UID == wanted.UID
}

// sameSpec reports whether a ControllerRevision has the spec of the one that is wanted, whatever way the spec
// is written.
func sameSpec(there, want *appsv1.ControllerRevision) bool {
	has, err := specIn(there)
	if err != nil || has == nil {
		return false
	}
	wanted, err := specIn(want)
	if err != nil || reflect.TypeOf(has) != reflect.TypeOf(wanted) {
		return false
	}
	return equality.Semantic.DeepEqual(has, wanted)
}

// specIn returns the spec of the instancetype or the preference in a ControllerRevision, or nil if there is
// none.
func specIn(revision *appsv1.ControllerRevision) (any, error) {
	var object struct {
		metav1.TypeMeta
		Spec json.RawMessage `json:"spec"`
	}
	err := json.Unmarshal(revision.Data.Raw, &object)
	if err == nil && object.APIVersion == v1beta1.GroupVersion.String() && len(object.Spec) > 0 {
		var spec any = &v1beta1.VirtualMachineInstancetypeSpec{}
		if strings.HasSuffix(object.Kind, "Preference") {
			spec = &v1beta1.VirtualMachinePreferenceSpec{}
		}
		err = json.Unmarshal(object.Spec, spec)
		return spec, err
	}
	return nil, err
}

// revisionName returns a name in KubeVirt's form, cut to the length of a valid name. The UIDs in it keep cut
// names distinct.
func revisionName(vm *v1.VirtualMachine, object client.Object) string {
	const most = 253
	tail := fmt.Sprintf("-%s-%s-%s-%d", v1beta1.GroupVersion.Version, vm.UID, object.GetUID(), object.GetGeneration())
	head := vm.Name + "-" + object.GetName()
	return strings.TrimRight(head[:min(len(head), most-len(tail))], ".-") + tail
}
