package admission

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The schema does not spare the API server the work: it looks at every element of a list and at every member of a map,
// whether the list is too long or not. It joins what is wrong with each, in time of the square of the number of errors.
// An object of 1 MB with 100,000 empty disks costs it half a minute. Mutating webhooks are asked before.
const (
	// maxList bounds every list of an object's spec. The schema bounds most lists at 256. It does not bound some, such
	// as the values of an affinity.
	maxList = 1024
	// maxElements bounds the elements of all lists of a spec together, and maxMembers the members of all its maps.
	maxElements = 4096
	maxMembers  = 10_000
	// longestPath is how much of a field's path is told, in bytes.
	longestPath = 512
)

// boundLists refuses an object with a list that is longer than maxList, or with more names and values than
// CheckReadable reads. It changes nothing.
func boundLists(_ Facts, question *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	refusal := longList(question.Object.Raw)
	if refusal == nil {
		return allowed()
	}
	kind := schema.GroupKind{Group: question.Kind.Group, Kind: question.Kind.Kind}
	status := apierrors.NewInvalid(kind, question.Name, field.ErrorList{refusal}).Status()
	return &admissionv1.AdmissionResponse{Result: &status}
}

// refusedUnread returns the refusal of a review that has more names and values than read takes, if a list in it is too
// long; otherwise nil. It decodes no more than the refusal needs, and copies nothing else.
func refusedUnread(text []byte) *admissionv1.AdmissionReview {
	var asked struct {
		APIVersion string `json:"apiVersion"`
		Request    struct {
			UID    types.UID               `json:"uid"`
			Kind   metav1.GroupVersionKind `json:"kind"`
			Name   string                  `json:"name"`
			Object json.RawMessage         `json:"object"`
		} `json:"request"`
	}
	if err := json.Unmarshal(text, &asked); err != nil || asked.APIVersion != admissionv1.SchemeGroupVersion.String() {
		return nil
	}
	question := &admissionv1.AdmissionRequest{UID: asked.Request.UID, Kind: asked.Request.Kind, Name: asked.Request.Name, Object: runtime.RawExtension{Raw: asked.Request.Object}}
	if checkNames(question) != nil {
		return nil
	}
	answer := boundLists(Facts{}, question)
	if answer.Allowed {
		return nil
	}
	answer.UID = asked.Request.UID
	return &admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: asked.APIVersion, Kind: "AdmissionReview"}, Response: answer}
}

// longList returns an error that names the first list of an object's spec that is too long, or nil. The schema names
// what is no JSON object.
func longList(raw []byte) *field.Error {
	l := lists{tokens: json.NewDecoder(bytes.NewReader(raw))}
	l.tokens.UseNumber()
	l.value(nil, false)
	if l.refusal != nil && len(l.refusal.Field) > longestPath {
		l.refusal.Field = strings.ToValidUTF8(l.refusal.Field[:longestPath], "") + "…"
	}
	return l.refusal
}

// lists reads a JSON text up to the first list that is too long.
type lists struct {
	tokens *json.Decoder
	read   int
	depth  int
	// elements and members count those of the spec.
	elements, members int
	refusal           *field.Error
}

// next returns the next token, or false at the end of what is read.
func (l *lists) next(path *field.Path) (json.Token, bool) {
	if l.read++; l.read > maxTokens {
		l.refusal = field.Invalid(orObject(path), "", fmt.Sprintf("the object has more than %d names and values up to here", maxTokens))
		return nil, false
	}
	token, err := l.tokens.Token()
	return token, err == nil
}

func orObject(path *field.Path) *field.Path {
	if path == nil {
		return field.NewPath("object")
	}
	return path
}

// count counts an element of a list or a member of a map. It returns false if there are too many.
func (l *lists) count(of json.Delim, path *field.Path) bool {
	if of == '[' {
		l.elements++
	} else {
		l.members++
	}
	switch {
	case l.elements > maxElements:
		l.refusal = field.Invalid(path, "", fmt.Sprintf("the lists of the spec have more than %d elements up to here", maxElements))
	case l.members > maxMembers:
		l.refusal = field.Invalid(path, "", fmt.Sprintf("the spec has more than %d members up to here", maxMembers))
	}
	return l.refusal == nil
}

// value reads a value. It returns false if nothing more is to be read. bounded says that lists in it are bounded.
func (l *lists) value(path *field.Path, bounded bool) bool {
	token, ok := l.next(path)
	if !ok {
		return false
	}
	kind, ok := token.(json.Delim)
	if !ok {
		return true
	}
	if l.depth++; l.depth > maxDepth {
		l.refusal = field.Invalid(orObject(path), "", fmt.Sprintf("the object is nested more than %d deep", maxDepth))
		return false
	}
	for i := 0; l.tokens.More(); i++ {
		at, inner := path, bounded
		switch {
		case kind == '{':
			name, ok := l.next(path)
			text, isName := name.(string)
			if !ok || !isName {
				return false
			}
			at, inner = path.Child(text), bounded || path == nil && text == "spec"
		case bounded && i == maxList:
			l.refusal = field.TooMany(path, -1, maxList)
			return false
		}
		if bounded && !l.count(kind, path) {
			return false
		}
		if !l.value(at, inner) {
			return false
		}
	}
	l.depth--
	_, ok = l.next(path)
	return ok
}
