package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

const (
	// maxReview is more than the API server takes of an object, twice.
	maxReview = 8 << 20
	// maxFilled bounds what defaults are computed for: comparing takes time, and
	// this is before the schema, which bounds lists. Whatever is larger passes as
	// it is, and virt-controller fills it in.
	maxFilled = 64 << 10
)

// answer is an answer to one question.
type answer func(facts Facts, question *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse

// serve answers an AdmissionReview of the API server's.
func serve(answer answer, facts func(context.Context) (Facts, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxReview))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal(text, &review); err != nil || review.Request == nil || review.APIVersion != admissionv1.SchemeGroupVersion.String() {
			http.Error(w, "the body is no AdmissionReview of admission.k8s.io/v1", http.StatusBadRequest)
			return
		}
		known, err := facts(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		review.Response = answer(known, review.Request)
		review.Response.UID, review.Request = review.Request.UID, nil
		w.Header().Set("Content-Type", "application/json")
		// Who asked may have gone, which is all that can go wrong.
		_ = json.NewEncoder(w).Encode(&review)
	})
}

func allowed() *admissionv1.AdmissionResponse { return &admissionv1.AdmissionResponse{Allowed: true} }

// mutate fills in what an object leaves out. What it cannot read it lets pass as
// it is: the schema, which is asked next, names what is wrong with it.
func (k kind) mutate(facts Facts, question *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	raw := question.Object.Raw
	if len(raw) > maxFilled {
		return allowed()
	}
	before, after, err := k.fill(raw, facts)
	if err != nil {
		return allowed()
	}
	if old := question.OldObject.Raw; len(old) > 0 {
		if after, err = unchanged(before, after, old); err != nil {
			return allowed()
		}
	}
	operations, err := patch(raw, before, after)
	if err != nil || len(operations) == 0 {
		return allowed()
	}
	text, err := json.Marshal(operations)
	if err != nil {
		return allowed()
	}
	return &admissionv1.AdmissionResponse{Allowed: true, Patch: text, PatchType: ptr.To(admissionv1.PatchTypeJSONPatch)}
}

// validate refuses an object with everything that is wrong with it. It is asked
// after the schema.
func (k kind) validate(facts Facts, question *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	errs, err := k.check(question.Object.Raw, question.OldObject.Raw, facts)
	if err != nil {
		// The controllers could not read it either.
		named := field.Invalid(field.NewPath("object"), "", fmt.Sprintf("cannot be read: %v", err))
		errors.As(err, &named) // where it is known
		errs = field.ErrorList{named}
	}
	if len(errs) == 0 {
		return allowed()
	}
	// What the API server itself says of objects that are invalid.
	status := apierrors.NewInvalid(k.kind, question.Name, errs).Status()
	return &admissionv1.AdmissionResponse{Result: &status}
}
