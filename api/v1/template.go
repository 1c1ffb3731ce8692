package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// VirtualMachineInstanceTemplateSpec is what VirtualMachineInstances are made from.
type VirtualMachineInstanceTemplateSpec struct {
	// ObjectMeta: labels and annotations are given to every
	// VirtualMachineInstance; the rest is without effect unless it is said
	// where the template is used.
	// +optional
	// +nullable
	// +kubebuilder:pruning:PreserveUnknownFields
	ObjectMeta metav1.ObjectMeta `json:"metadata,omitempty"`
	// Spec of every VirtualMachineInstance.
	Spec VirtualMachineInstanceSpec `json:"spec"`
}

// anyUID stands for the UID of a VirtualMachineInstance that is not made yet.
const anyUID types.UID = "00000000-0000-4000-8000-000000000000"

// validateTemplate returns every error of a template, as what is made from it
// would have them after defaulting.
func validateTemplate(template *VirtualMachineInstanceTemplateSpec, path *field.Path) field.ErrorList {
	errs := validation.ValidateLabels(template.ObjectMeta.Labels, path.Child("metadata", "labels"))
	vmi := &VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{UID: anyUID}, Spec: *template.Spec.DeepCopy()}
	Default(vmi)
	return append(errs, validateSpec(&vmi.Spec, path.Child("spec"))...)
}
