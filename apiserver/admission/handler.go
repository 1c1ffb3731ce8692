package admission

import (
	"context"
	"fmt"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// maxFilled bounds what defaults are computed for: comparing takes time, and
// this is before the schema, which bounds lists. Whatever is larger passes as
// it is, and virt-controller fills it in.
const maxFilled = 256 << 10

// mutating fills in what objects leave out.
type mutating struct {
	kind
	facts func(context.Context) (Facts, error)
}

// Handle lets what it cannot read pass as it is: the schema, which is asked
// next, names what is wrong with it.
func (m mutating) Handle(ctx context.Context, request admission.Request) admission.Response {
	facts, err := m.facts(ctx)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	raw := request.Object.Raw
	if len(raw) > maxFilled {
		return admission.Allowed("")
	}
	before, after, err := m.fill(raw, facts)
	if err != nil {
		return admission.Allowed("")
	}
	operations, err := patch(raw, before, after)
	if err != nil {
		return admission.Allowed("")
	}
	return admission.Patched("", operations...)
}

// validating refuses objects with everything that is wrong with them.
type validating struct {
	kind
	facts func(context.Context) (Facts, error)
}

// Handle is asked after the schema.
func (v validating) Handle(ctx context.Context, request admission.Request) admission.Response {
	facts, err := v.facts(ctx)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	errs, err := v.check(request.Object.Raw, request.OldObject.Raw, facts)
	if err != nil {
		// The controllers could not read it either.
		errs = field.ErrorList{field.Invalid(nil, "", fmt.Sprintf("cannot be read: %v", err))}
	}
	if len(errs) == 0 {
		return admission.Allowed("")
	}
	// What the API server itself says of objects that are invalid.
	status := apierrors.NewInvalid(v.kind.kind, request.Name, errs).Status()
	return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Result: &status}}
}
