package validation

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// ValidateVirtualMachineInstanceReplicaSet returns every error of a ReplicaSet at once, with exact paths. Its errors
// of the template are those of every VirtualMachineInstance made from it.
func ValidateVirtualMachineInstanceReplicaSet(rs *v1.VirtualMachineInstanceReplicaSet) field.ErrorList {
	spec, path := &rs.Spec, field.NewPath("spec")
	var errs field.ErrorList
	errs = append(errs, ValidateReplicas(rs.WantedReplicas(), path.Child("replicas"))...)
	errs = append(errs, validateSelector(spec, path)...)
	return InOrder(append(errs, validateTemplate(&spec.Template, path.Child("template"))...))
}

// ValidateReplicas returns what is wrong with the wanted number of members.
func ValidateReplicas(wanted int, path *field.Path) field.ErrorList {
	if wanted < 0 || wanted > v1.MaxReplicas {
		return field.ErrorList{field.Invalid(path, wanted,
			fmt.Sprintf("must be from 0 to %d: make another object for more", v1.MaxReplicas))}
	}
	return nil
}

// validateSelector also refuses a selector that matches everything: it would
// take over every VirtualMachineInstance of the namespace.
func validateSelector(spec *v1.VirtualMachineInstanceReplicaSetSpec, parent *field.Path) field.ErrorList {
	path := parent.Child("selector")
	if spec.Selector == nil || len(spec.Selector.MatchLabels)+len(spec.Selector.MatchExpressions) == 0 {
		return field.ErrorList{field.Required(path, "must match the labels of the template")}
	}
	errs := append(metav1validation.ValidateLabelSelector(spec.Selector, metav1validation.LabelSelectorValidationOptions{},
		path), validateSelected(spec.Selector, path)...)
	if len(errs) > 0 {
		return errs
	}
	selector, err := metav1.LabelSelectorAsSelector(spec.Selector)
	if err != nil {
		return field.ErrorList{field.Invalid(path, spec.Selector, err.Error())}
	}
	if have := labels.Set(v1.WithoutReservedLabels(spec.Template.ObjectMeta.Labels)); !selector.Matches(have) {
		return field.ErrorList{field.Invalid(parent.Child("template", "metadata", "labels"), have.String(),
			"the selector "+selector.String()+" does not match them")}
	}
	return nil
}

const observedLabel = "virt-controller writes this label of VirtualMachineInstances, by what it sees of the guest: " +
	"leave it out"

// validateSelected refuses a ReplicaSet's selector by labels that virt-controller writes. A VMI that got such a label,
// or lost it, would not be the ReplicaSet's any more, and the ReplicaSet would make another one, without end.
func validateSelected(selector *metav1.LabelSelector, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for key := range selector.MatchLabels {
		if v1.ObservedLabel(key) {
			errs = append(errs, field.Forbidden(path.Child("matchLabels").Key(key), observedLabel))
		}
	}
	for i, e := range selector.MatchExpressions {
		if v1.ObservedLabel(e.Key) {
			errs = append(errs, field.Forbidden(path.Child("matchExpressions").Index(i).Child("key"), observedLabel))
		}
	}
	return errs
}
