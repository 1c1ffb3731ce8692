package instancetype

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// This file has KubeVirt's words for what does not go together. Clients of KubeVirt look for them.

// conflicts is KubeVirt's text about fields that the VM and its instancetype both set.
const conflicts = "VM field(s) %s conflicts with selected instance type"

// ConflictCauses returns errors of Apply as causes of a refusal, one for each.
func ConflictCauses(errs field.ErrorList) []metav1.StatusCause {
	causes := make([]metav1.StatusCause, len(errs))
	for i, err := range errs {
		causes[i] = metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Field: err.Field, Message: fmt.Sprintf(conflicts, err.Field)}
		if err.Type != field.ErrorTypeForbidden {
			causes[i].Message = err.Detail
		}
	}
	return causes
}

// ConflictText returns errors of Apply as one text.
func ConflictText(errs field.ErrorList) string {
	var fields, others string
	for _, err := range errs {
		if err.Type != field.ErrorTypeForbidden {
			others = joined(others, err.Detail)
			continue
		}
		fields = joined(fields, err.Field)
	}
	if fields != "" {
		fields = fmt.Sprintf(conflicts, fields)
	}
	return joined(fields, others)
}

func joined(text, more string) string {
	if text == "" || more == "" {
		return text + more
	}
	return text + ", " + more
}

// LackCauses returns errors of Lacks as causes of a refusal, one for each.
func LackCauses(errs field.ErrorList) []metav1.StatusCause {
	causes := make([]metav1.StatusCause, len(errs))
	for i, err := range errs {
		causes[i] = metav1.StatusCause{Type: metav1.CauseTypeFieldValueNotFound, Field: err.Field, Message: "failure checking preference requirements: " + err.Detail}
	}
	return causes
}
