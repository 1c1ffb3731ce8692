package v1

import (
	"slices"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// VirtualMachineInstanceTemplateSpec is what VirtualMachineInstances are made from.
type VirtualMachineInstanceTemplateSpec struct {
	// ObjectMeta: every VirtualMachineInstance gets the labels and annotations. Other metadata
	// has no effect, unless the template's own description says so.
	// +optional
	// +nullable
	ObjectMeta TemplateMeta `json:"metadata,omitempty"`
	// Spec of every VirtualMachineInstance.
	Spec VirtualMachineInstanceSpec `json:"spec"`
}

// TemplateMeta is the part of a template's metadata that has an effect. Other metadata is kept:
// tools write creationTimestamp: null. TemplateMeta is not metav1.ObjectMeta, whose timestamps
// are of any type in the schema: one that is no timestamp would keep every client from decoding
// the list.
//
// +kubebuilder:pruning:PreserveUnknownFields
type TemplateMeta struct {
	// Name begins the names of a ReplicaSet's VirtualMachineInstances.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
	// GenerateName is the same, if there is no name.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	GenerateName string `json:"generateName,omitempty"`
	// Labels of every VirtualMachineInstance, and of its launcher pod.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations of every VirtualMachineInstance, and of its launcher pod.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// anyUID stands for the UID of a VirtualMachineInstance that is not made yet.
const anyUID types.UID = "00000000-0000-4000-8000-000000000000"

// validateTemplate returns every error that an object made from the template would have after
// defaulting.
func validateTemplate(template *VirtualMachineInstanceTemplateSpec, path *field.Path) field.ErrorList {
	meta := path.Child("metadata")
	errs := validation.ValidateLabels(template.ObjectMeta.Labels, meta.Child("labels"))
	errs = append(errs, apivalidation.ValidateAnnotations(template.ObjectMeta.Annotations, meta.Child("annotations"))...)
	errs = append(errs, validateAnnotations(template.ObjectMeta.Annotations, meta.Child("annotations"))...)
	vmi := &VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{UID: anyUID}, Spec: *template.Spec.DeepCopy()}
	Default(vmi)
	return InOrder(append(errs, validateSpec(&vmi.Spec, path.Child("spec"))...))
}

// InOrder sorts errors by field and text, so that an unchanged failure does not change the
// status: Kubernetes validates labels, selectors and annotations in a map's order.
func InOrder(errs field.ErrorList) field.ErrorList {
	texts := make(map[*field.Error]string, len(errs)) // made once each: they are long
	for _, err := range errs {
		texts[err] = err.Error()
	}
	slices.SortStableFunc(errs, func(a, b *field.Error) int {
		if c := strings.Compare(a.Field, b.Field); c != 0 {
			return c
		}
		return strings.Compare(texts[a], texts[b])
	})
	return errs
}
