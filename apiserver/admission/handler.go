package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/kubeqemu/kubeqemu/internal/intake"
	"github.com/kubeqemu/kubeqemu/internal/jsonsize"
	"github.com/kubeqemu/kubeqemu/internal/patch"
)

const (
	// MaxReview, in bytes, is more than the new object, which the API server limits to 3 MiB,
	// and the old object, which etcd limits to 1.5 MiB.
	MaxReview = 6 << 20
	// maxValues is more than two readable objects have (maxTokens).
	maxValues = 2*maxTokens + 10_000
	// maxDeciding is how many reviews are decided at once: decoded, they take many times their
	// size.
	maxDeciding = 2
	// maxAsking is how many reviews wait at once for the API server's answer.
	maxAsking = 16
	// maxAnswer bounds an answer, in bytes. maxMessage bounds the message, in bytes, of an
	// answer that would be longer.
	maxAnswer     = 64 << 10
	maxMessage    = 8 << 10
	maxErrors     = 200
	maxWarnings   = 20
	answerTimeout = 10 * time.Second
	// maxFilled bounds the objects that get defaults, in bytes: comparing takes time, and
	// mutating webhooks run before the schema, which bounds lists. A larger object passes as it
	// is, and virt-controller fills it in.
	maxFilled = 64 << 10
)

// answer is an answer to one question.
type answer func(facts Facts, question *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse

// server answers everybody: the API server shows no certificate when it asks webhooks. bodies
// bounds the bodies in memory, by the address that sends them.
type server struct {
	facts            func(context.Context) (Facts, error)
	presets          Presets
	bodies           *intake.Bodies
	deciding, asking intake.Budget
}

// serve answers an AdmissionReview of the API server's. takesPresets says which objects presets may
// select; nil is none.
func (s *server) serve(answer answer, takesPresets func(*admissionv1.AdmissionRequest) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := s.decide(w, r, answer, takesPresets)
		respond(w, text, err)
	})
}

// respond sends an answer, or why there is none. Its caller has given back the places that the question
// took: a slow reader of the answer holds none.
func respond(w http.ResponseWriter, text []byte, err error) {
	if err != nil {
		refuse(w, err)
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTimeout))
	w.Header().Set("Content-Type", "application/json")
	// The client may have gone; nothing else can fail.
	_, _ = w.Write(text)
}

// decide reads a question and returns the answer to it.
func (s *server) decide(w http.ResponseWriter, r *http.Request, answer answer, takesPresets func(*admissionv1.AdmissionRequest) bool) ([]byte, error) {
	source := intake.Source(r.RemoteAddr)
	text, release, err := s.bodies.Read(w, r, source, MaxReview)
	if err != nil {
		return nil, err
	}
	defer release()
	turn, err := s.deciding.Take(r.Context(), source, 1, nil)
	if err != nil {
		return nil, err
	}
	defer func() { turn.Release() }()
	known, err := s.facts(r.Context())
	if err != nil {
		return nil, &unknownError{err}
	}
	review, err := read(text)
	if err != nil {
		if refusal := refusedUnread(text); refusal != nil {
			return encode(refusal)
		}
		return nil, err
	}
	if takesPresets != nil && takesPresets(review.Request) {
		// Other reviews are decided while this one waits for the API server.
		turn.Release()
		known.Presets = s.mayHavePresets(r.Context(), source, review.Request.Namespace)
		again, err := s.deciding.Take(r.Context(), source, 1, nil)
		if err != nil {
			return nil, err
		}
		turn = again
	}
	review.Response = answer(known, review.Request)
	review.Response.UID, review.Request = review.Request.UID, nil
	return encode(review)
}

// encode returns an answer as JSON, of maxAnswer bytes at most.
func encode(review *admissionv1.AdmissionReview) ([]byte, error) {
	text, err := json.Marshal(review)
	if err == nil && len(text) > maxAnswer {
		review.Response = short(review.Response)
		text, err = json.Marshal(review)
	}
	return text, err
}

// short returns an answer without its long parts: the causes, or the defaults, which
// virt-controller fills in too.
func short(long *admissionv1.AdmissionResponse) *admissionv1.AdmissionResponse {
	answer := &admissionv1.AdmissionResponse{UID: long.UID, Allowed: long.Allowed}
	if long.Result != nil {
		message := strings.ToValidUTF8(long.Result.Message[:min(len(long.Result.Message), maxMessage)], "")
		answer.Result = &metav1.Status{Status: long.Result.Status, Reason: long.Result.Reason, Code: long.Result.Code, Message: message + " … and more"}
	}
	return answer
}

// unknownError means that the facts, on which answers depend, are not known yet.
type unknownError struct{ err error }

func (e *unknownError) Error() string { return e.err.Error() }

func read(text []byte) (*admissionv1.AdmissionReview, error) {
	if n := jsonsize.NamesAndValues(text); n > maxValues {
		return nil, fmt.Errorf("the review has more than %d names and values", maxValues)
	}
	review := &admissionv1.AdmissionReview{}
	if err := json.Unmarshal(text, review); err != nil || review.Request == nil || review.APIVersion != admissionv1.SchemeGroupVersion.String() {
		return nil, errors.New("the body is no AdmissionReview of admission.k8s.io/v1")
	}
	if err := checkNames(review.Request); err != nil {
		return nil, err
	}
	return review, nil
}

// longestName is how long a name of Kubernetes' may be, in bytes.
const longestName = 253

// checkNames refuses a question with a name that is longer than Kubernetes' names. Answers repeat these names, and anybody may ask.
func checkNames(question *admissionv1.AdmissionRequest) error {
	for _, name := range []string{string(question.UID), question.Name, question.Namespace, question.Kind.Group, question.Kind.Kind} {
		if len(name) > longestName {
			return fmt.Errorf("the review has a name of %d bytes; %d are allowed", len(name), longestName)
		}
	}
	return nil
}

// refuse answers why a review was not decided. After a 429, the API server asks again if it
// still has time.
func refuse(w http.ResponseWriter, err error) {
	var long *intake.TooLongError
	var unknown *unknownError
	switch {
	case errors.As(err, &unknown):
		http.Error(w, err.Error(), http.StatusInternalServerError)
	case errors.As(err, &long):
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
	case errors.Is(err, intake.ErrFull), errors.Is(err, intake.ErrGaveWay):
		w.Header().Set("Retry-After", "1")
		http.Error(w, err.Error(), http.StatusTooManyRequests)
	default:
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

func allowed() *admissionv1.AdmissionResponse { return &admissionv1.AdmissionResponse{Allowed: true} }

// mutate fills in what an object leaves out. An object that mutate cannot read passes as it is:
// the schema comes next, and names the error.
func (k kind) mutate(facts Facts, question *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	raw := question.Object.Raw
	if answer := boundLists(facts, question); !answer.Allowed {
		return answer
	}
	if len(raw) > maxFilled {
		return allowed()
	}
	if facts.New = ""; question.Operation == admissionv1.Create {
		facts.New = question.UID
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
	return patched(raw, before, after)
}

// patched returns the answer that allows an object, and changes its JSON text as before was changed to after.
func patched(raw, before, after []byte) *admissionv1.AdmissionResponse {
	operations, err := patch.Operations(raw, before, after)
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
	errs, warnings, err := k.check(question.Object.Raw, question.OldObject.Raw, facts)
	if err != nil {
		// The controllers could not read it either.
		named := field.Invalid(field.NewPath("object"), "", fmt.Sprintf("cannot be read: %v", err))
		errors.As(err, &named) // the field itself, if err names one
		errs = field.ErrorList{named}
	}
	if len(errs) == 0 {
		response := allowed()
		if response.Warnings = warnings; len(warnings) > maxWarnings {
			response.Warnings = append(warnings[:maxWarnings:maxWarnings], fmt.Sprintf("there are %d warnings more", len(warnings)-maxWarnings))
		}
		return response
	}
	if more := len(errs) - maxErrors; more > 0 {
		// Joining errors takes time in the square of their number.
		errs = append(errs[:maxErrors:maxErrors], field.Invalid(field.NewPath("object"), "", fmt.Sprintf("has %d errors more", more)))
	}
	// As the API server itself answers for invalid objects.
	status := apierrors.NewInvalid(k.kind, question.Name, errs).Status()
	return &admissionv1.AdmissionResponse{Result: &status}
}
