package datavolume

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

// adoptionAnnotation lets CDI take over a claim of the DataVolume's name that is there already, as
// KubeVirt has it.
const adoptionAnnotation = "cdi.kubevirt.io/allowClaimAdoption"

// accountAnnotation names the VM's service account to the policy kubevirt-controller-data-volumes,
// which asks again whether the account may clone.
const accountAnnotation = "kubeqemu.io/service-account"

// Make returns the DataVolume of a VM's template, with the source that was resolved from the
// template, and the storage class of a claim that names none. Make is pure.
func Make(vm *v1.VirtualMachine, template *v1.DataVolumeTemplate, source *Source, class string) (*unstructured.Unstructured, error) {
	spec, err := template.Fields()
	if err != nil {
		return nil, err
	}
	labels, annotations := map[string]string{}, map[string]string{adoptionAnnotation: "true"}
	if source != nil {
		// What is made is what was checked: a DataSource may change at any time.
		delete(spec, "sourceRef")
		spec["source"] = map[string]any{source.kind: map[string]any{"namespace": source.namespace, "name": source.name}}
		maps.Copy(labels, source.labels)
	}
	for _, form := range []string{"storage", "pvc"} {
		if claim, ok := spec[form].(map[string]any); ok && claim["storageClassName"] == nil && class != "" {
			claim["storageClassName"] = class
		}
	}
	if _, set := spec["priorityClassName"]; !set && vm.Spec.Template.Spec.PriorityClassName != "" {
		spec["priorityClassName"] = vm.Spec.Template.Spec.PriorityClassName
	}
	maps.Copy(labels, template.ObjectMeta.Labels)
	maps.Copy(annotations, template.ObjectMeta.Annotations)
	annotations[accountAnnotation] = Account(vm)
	// CDI copies labels to its pods, and nobody else may give a pod the label of launcher pods.
	delete(labels, v1.CreatedByLabel)
	volume := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	volume.SetGroupVersionKind(v1.DataVolumeGroupVersionKind)
	volume.SetNamespace(vm.Namespace)
	volume.SetName(template.ObjectMeta.Name)
	volume.SetLabels(labels)
	volume.SetAnnotations(annotations)
	volume.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)})
	return volume, nil
}

// Foreign names the controller of a DataVolume of a VM's template, or of the claim. It is empty if
// the VM or nobody controls the object.
func Foreign(vm *v1.VirtualMachine, object metav1.Object) string {
	c := metav1.GetControllerOf(object)
	if c == nil || owner.Controls(v1.VirtualMachineGroupVersionKind.GroupKind(), vm, object) {
		return ""
	}
	return Short(c.Kind + " " + c.Name)
}

// Earlier says whether an earlier VM of the VM's name controls an object. The garbage collector
// deletes the object.
func Earlier(vm *v1.VirtualMachine, object metav1.Object) bool {
	c := owner.Reference(object, v1.VirtualMachineGroupVersionKind.GroupKind())
	return c != nil && c.Name == vm.Name && c.UID != vm.UID
}

// Left says whether a DataVolume that is gone controls a claim. The garbage collector deletes the
// claim.
func Left(claim metav1.Object) bool {
	c := owner.Reference(claim, v1.DataVolumeGroupVersionKind.GroupKind())
	return c != nil && c.Name == claim.GetName()
}
