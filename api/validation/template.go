package validation

import (
	"slices"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// anyUID stands for the UID of a VirtualMachineInstance that is not made yet.
const anyUID types.UID = "00000000-0000-4000-8000-000000000000"

// validateTemplate returns every error that an object made from the template would have after
// defaulting.
func validateTemplate(template *v1.VirtualMachineInstanceTemplateSpec, path *field.Path) field.ErrorList {
	meta := path.Child("metadata")
	errs := metav1validation.ValidateLabels(template.ObjectMeta.Labels, meta.Child("labels"))
	errs = append(errs, apivalidation.ValidateAnnotations(template.ObjectMeta.Annotations, meta.Child("annotations"))...)
	errs = append(errs, validateAnnotations(template.ObjectMeta.Annotations, meta.Child("annotations"))...)
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{UID: anyUID}, Spec: *template.Spec.DeepCopy()}
	v1.Default(vmi)
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
