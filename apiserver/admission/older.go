package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeqemu/kubeqemu/apiserver/older"
)

const (
	// maxWarnings is how many warnings an answer has. maxWarning bounds one of them, and
	// maxWarningTexts all of them, in bytes: the API server shows 4 KiB, and cuts each to 256 bytes
	// if there are more.
	maxWarnings     = 32
	maxWarning      = 256
	maxWarningTexts = 4 << 10
	// maxOlderTokens bounds the names and values of an object. The API server's library takes time
	// in the square of the number of errors: 1 s for as many errors as this. A VM with fifty disks
	// has 3,000 names and values.
	maxOlderTokens = 5_000
)

// Schema checks an object with the schema of its kind's stored version.
type Schema interface {
	Ask(ctx context.Context, question older.Question) (older.Answer, error)
}

// olderVersions answers about objects of versions for which the CRDs have no schema.
type olderVersions struct{ schema Schema }

// validate refuses what the API server and the other webhooks refuse in the stored version, in the
// same order: unknown fields, if the client wants that; then the schema; then the rules of the kind.
func (o olderVersions) validate(ctx context.Context, facts Facts, question *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error) {
	all := kinds()
	i := slices.IndexFunc(all, func(k kind) bool {
		return k.kind.Group == question.Resource.Group && k.resource == question.Resource.Resource
	})
	if i < 0 || question.SubResource != "" {
		return nil, errors.New("objects of this resource are not checked here") // its name may be long
	}
	k := all[i]
	if err := checkReadable(question.Object.Raw, maxOlderTokens); err != nil {
		return k.invalid(question.Name, unreadable(err)), nil
	}
	old := question.OldObject.Raw
	if checkReadable(old, maxOlderTokens) != nil {
		old = nil // what is stored, and cannot be read, excuses nothing
	}
	found, err := o.schema.Ask(ctx, older.Question{Group: k.kind.Group, Resource: k.resource, Name: question.Name, Object: question.Object.Raw, Old: old})
	if errors.Is(err, older.ErrBusy) {
		return nil, err
	}
	if err != nil {
		return nil, &unknownError{err}
	}
	if len(found.Unknown) > 0 && strict(question) {
		return unknownFields(k, question, found.Unknown), nil
	}
	response := &admissionv1.AdmissionResponse{Result: found.Invalid}
	if found.Invalid == nil {
		checked := *question
		checked.Object.Raw, checked.OldObject.Raw = found.Object, old
		response = k.validate(facts, &checked)
	}
	response.Warnings = warnings(found.Unknown)
	return response, nil
}

// strict says whether the client wants unknown fields to be refused. Otherwise it is warned.
func strict(question *admissionv1.AdmissionRequest) bool {
	var options struct {
		FieldValidation string `json:"fieldValidation"`
	}
	_ = json.Unmarshal(question.Options.Raw, &options) // no options are none
	return options.FieldValidation == metav1.FieldValidationStrict
}

// unknownFields is the API server's answer for fields that the schema does not have.
func unknownFields(k kind, question *admissionv1.AdmissionRequest, unknown []string) *admissionv1.AdmissionResponse {
	version := question.Resource.Version
	if question.RequestKind != nil {
		version = question.RequestKind.Version
	}
	status := apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: strict decoding error: %s",
		k.kind.Kind, version, k.kind.Kind, strings.Join(named(unknown), ", "))).Status()
	return &admissionv1.AdmissionResponse{Result: &status}
}

// warnings are the API server's for unknown fields, which it drops.
func warnings(unknown []string) []string {
	var all []string
	texts := 0
	for i, text := range named(unknown) {
		if len(text) > maxWarning {
			text = cut(text, maxWarning-len("…")) + "…"
		}
		if texts += len(text); i == maxWarnings || texts > maxWarningTexts {
			return append(all, fmt.Sprintf("and %d unknown fields more", len(unknown)-i))
		}
		all = append(all, text)
	}
	return all
}

func named(unknown []string) []string {
	var texts []string
	for _, path := range unknown {
		texts = append(texts, fmt.Sprintf("unknown field %q", path))
	}
	return texts
}
