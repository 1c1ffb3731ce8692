package vm

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeqemu/kubeqemu/api/instancetype/choice"
	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// remembered says whether the status already has the choice.
func remembered(c *choice.Choice, status *v1.VirtualMachineStatus) bool {
	instancetype, preference := c.Refs()
	return equality.Semantic.DeepEqual(instancetype, status.InstancetypeRef) && equality.Semantic.DeepEqual(preference, status.PreferenceRef)
}

// choose finds the instancetype and the preference for a start. At the first start it copies
// them into ControllerRevisions of the VM, so that the VM's machine does not change when
// somebody changes an instancetype.
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

// withoutTemplates leaves out the DataVolumeTemplates. Their DataVolumes exist by now, and what those
// are cloned from was checked. What a template says now may have been changed since.
func withoutTemplates(vm *v1.VirtualMachine) *v1.VirtualMachine {
	without := *vm
	without.Spec.DataVolumeTemplates = nil
	return &without
}

// recordRevision copies an object into a ControllerRevision of the VM, and returns the
// revision's name. The name is always the same for the same VM and generation of the object.
func (r *Reconciler) recordRevision(ctx context.Context, vm *v1.VirtualMachine, object client.Object, objectKind string) (string, error) {
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
	if err := r.Client.Create(ctx, revision); err != nil && !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("keep %s %q in a ControllerRevision: %w", objectKind, object.GetName(), err)
	}
	return revision.Name, nil
}

// revisionName is a name in KubeVirt's form, cut to the length of a valid name. The UIDs in it
// keep cut names distinct.
func revisionName(vm *v1.VirtualMachine, object client.Object) string {
	const most = 253
	tail := fmt.Sprintf("-%s-%s-%s-%d", v1beta1.GroupVersion.Version, vm.UID, object.GetUID(), object.GetGeneration())
	head := vm.Name + "-" + object.GetName()
	return strings.TrimRight(head[:min(len(head), most-len(tail))], ".-") + tail
}
