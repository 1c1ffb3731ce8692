package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeqemu/kubeqemu/apiserver/older"
	"github.com/kubeqemu/kubeqemu/internal/intake"
)

// schemaAnswer is a Schema with one answer.
type schemaAnswer struct {
	answer older.Answer
	err    error
	asked  *older.Question
}

func (s schemaAnswer) Ask(_ context.Context, question older.Question) (older.Answer, error) {
	*s.asked = question
	if s.answer.Object == nil && s.answer.Invalid == nil {
		s.answer.Object = question.Object
	}
	return s.answer, s.err
}

// review asks the webhook for older versions. Code is the HTTP status.
func (s schemaAnswer) review(t *testing.T, question admissionv1.AdmissionRequest) (code int, answer *admissionv1.AdmissionResponse, text string) {
	t.Helper()
	mux := http.NewServeMux()
	RegisterOlder(mux, func(context.Context) (Facts, error) { return empty, nil }, intake.NewBodies(2*MaxReview), s)
	body, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: &question})
	if err != nil {
		t.Fatal(err)
	}
	recorder := httptest.NewRecorder()
	mux.ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, "/older-versions-validate", strings.NewReader(string(body))))
	var review admissionv1.AdmissionReview
	if recorder.Code == http.StatusOK {
		if err := json.Unmarshal(recorder.Body.Bytes(), &review); err != nil || review.Response == nil {
			t.Fatalf("%s: %v", recorder.Body, err)
		}
	}
	return recorder.Code, review.Response, recorder.Body.String()
}

func olderQuestion(resource, object, old, options string) admissionv1.AdmissionRequest {
	return admissionv1.AdmissionRequest{UID: question, Name: "x", Resource: metav1.GroupVersionResource{Group: "kubevirt.io", Version: "v1alpha3", Resource: resource},
		RequestKind: &metav1.GroupVersionKind{Group: "kubevirt.io", Version: "v1alpha3", Kind: "X"},
		Object:      rawExtension(object), OldObject: rawExtension(old), Options: rawExtension(options)}
}

func rawExtension(text string) runtime.RawExtension {
	if text == "" {
		return runtime.RawExtension{}
	}
	return runtime.RawExtension{Raw: []byte(text)}
}

func TestOlderVersions(t *testing.T) {
	const vm = `{"spec":{"runStrategy":"Halted","template":{"spec":{"domain":{"memory":{"guest":"%s"}}}}}}`
	good, bad := fmt.Sprintf(vm, "1Gi"), fmt.Sprintf(vm, "1")
	const strictly = `{"fieldValidation":"Strict"}`
	invalid := &metav1.Status{Code: 422, Message: "by the schema"}
	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprint("spec.f", i))
	}
	for name, c := range map[string]struct {
		schema               older.Answer
		object, old, options string
		code                 int32
		says                 string
		warnings             int
	}{
		"good":                             {older.Answer{}, good, "", "", 0, "", 0},
		"by the schema":                    {older.Answer{Invalid: invalid}, bad, "", "", 422, "by the schema", 0},
		"by our rules":                     {older.Answer{}, bad, "", "", 422, "spec.template.spec.domain.memory.guest", 0},
		"bad as it was":                    {older.Answer{}, bad, bad, "", 0, "", 0},
		"bad, and was good":                {older.Answer{}, bad, good, "", 422, "spec.template.spec.domain.memory.guest", 0},
		"the schema's object is ruled on":  {older.Answer{Object: json.RawMessage(bad)}, good, "", "", 422, "spec.template.spec.domain.memory.guest", 0},
		"an unknown field":                 {older.Answer{Unknown: []string{"spec.a"}}, good, "", "", 0, "", 1},
		"an unknown field, ignored":        {older.Answer{Unknown: []string{"spec.a"}}, good, "", `{"fieldValidation":"Ignore"}`, 0, "", 1},
		"an unknown field, strictly":       {older.Answer{Unknown: []string{"spec.a", "b"}}, good, "", strictly, 400, `VirtualMachine in version "v1alpha3" cannot be handled as a VirtualMachine: strict decoding error: unknown field "spec.a", unknown field "b"`, 0},
		"strictly, and by the schema":      {older.Answer{Unknown: []string{"spec.a"}, Invalid: invalid}, good, "", strictly, 400, `unknown field "spec.a"`, 0},
		"an unknown field, and the schema": {older.Answer{Unknown: []string{"spec.a"}, Invalid: invalid}, good, "", "", 422, "by the schema", 1},
		"many unknown fields":              {older.Answer{Unknown: many}, good, "", "", 0, "", maxWarnings + 1},
		"too many values":                  {older.Answer{}, `[` + strings.Repeat(`1,`, maxTokens) + `1]`, "", "", 422, "cannot be read", 0},
		"a costly number":                  {older.Answer{}, fmt.Sprintf(vm, "1e-999999999"), "", "", 422, "spec.template.spec.domain.memory.guest: Invalid value", 0},
	} {
		asked := older.Question{}
		code, answer, text := schemaAnswer{answer: c.schema, asked: &asked}.review(t, olderQuestion("virtualmachines", c.object, c.old, c.options))
		if code != http.StatusOK || answer.UID != question {
			t.Errorf("%s: %d %s", name, code, text)
			continue
		}
		if answer.Allowed != (c.code == 0) || !answer.Allowed && (answer.Result.Code != c.code || !strings.Contains(answer.Result.Message, c.says)) || len(answer.Warnings) != c.warnings {
			t.Errorf("%s: %+v", name, answer)
		}
	}
}

// TestOlderVersionsLong: an answer is short, whatever is asked, and says what it can.
func TestOlderVersionsLong(t *testing.T) {
	good := `{"spec":{"runStrategy":"Halted","template":{"spec":{"domain":{"memory":{"guest":"1Gi"}}}}}}`
	var unknown []string
	for i := range 200 {
		unknown = append(unknown, fmt.Sprint("spec.", i, strings.Repeat("<", 16<<10)))
	}
	invalid := &metav1.Status{Code: 422, Message: strings.Repeat("<", 1<<20)}
	for name, c := range map[string]struct {
		schema  older.Answer
		options string
		warned  bool
	}{
		"unknown fields":                {older.Answer{Unknown: unknown}, "", true},
		"unknown fields, strictly":      {older.Answer{Unknown: unknown}, `{"fieldValidation":"Strict"}`, false},
		"unknown fields, and an error":  {older.Answer{Unknown: unknown, Invalid: invalid}, "", false},
		"a short path, and a long text": {older.Answer{Unknown: []string{"spec.a"}, Invalid: invalid}, "", true},
	} {
		code, answer, text := schemaAnswer{answer: c.schema, asked: new(older.Question)}.review(t, olderQuestion("virtualmachines", good, "", c.options))
		if code != http.StatusOK || len(text) > maxAnswer || (len(answer.Warnings) > 0) != c.warned {
			t.Errorf("%s: %d, %d bytes, %d warnings", name, code, len(text), len(answer.Warnings))
		}
		if all := strings.Join(answer.Warnings, ""); len(all) > maxWarningTexts+100 || strings.Contains(all, strings.Repeat("<", maxWarning)) {
			t.Errorf("%s: %d bytes of warnings", name, len(all))
		}
	}
	// What is no answer is short too, and nothing that the question says makes it longer.
	long := strings.Repeat("x", 1<<20)
	for name, c := range map[string]struct {
		change func(*admissionv1.AdmissionRequest)
		err    error
		code   int
	}{
		"a resource": {func(q *admissionv1.AdmissionRequest) { q.Resource.Resource = long }, nil, 400},
		"a UID":      {func(q *admissionv1.AdmissionRequest) { q.UID = types.UID(long) }, nil, 400},
		"an error":   {func(*admissionv1.AdmissionRequest) {}, errors.New(long), 500},
		"a version":  {func(q *admissionv1.AdmissionRequest) { q.RequestKind.Version = long }, nil, 200},
	} {
		asked := olderQuestion("virtualmachines", good, "", `{"fieldValidation":"Strict"}`)
		c.change(&asked)
		code, _, text := schemaAnswer{answer: older.Answer{Unknown: []string{"spec.a"}}, err: c.err, asked: new(older.Question)}.review(t, asked)
		if limit := map[bool]int{true: maxAnswer, false: maxRefusal + 1}[code == 200]; code != c.code || len(text) > limit {
			t.Errorf("%s: %d, %d bytes: %.100s", name, code, len(text), text)
		}
	}
}

// TestOlderVersionsFail: what was not checked is not allowed.
func TestOlderVersionsFail(t *testing.T) {
	for name, c := range map[string]struct {
		err      error
		question admissionv1.AdmissionRequest
		code     int
		says     string
	}{
		"virt-schema dies": {errors.New("ask virt-schema: EOF"), olderQuestion("virtualmachines", `{}`, "", ""), 500, "ask virt-schema: EOF"},
		"it is busy":       {fmt.Errorf("x: %w", older.ErrBusy), olderQuestion("virtualmachines", `{}`, "", ""), 429, "being checked"},
		"another kind":     {nil, olderQuestion("pods", `{}`, "", ""), 400, "are not checked here"},
	} {
		if code, _, text := (schemaAnswer{err: c.err, asked: new(older.Question)}).review(t, c.question); code != c.code || !strings.Contains(text, c.says) {
			t.Errorf("%s: %d %s", name, code, text)
		}
	}
	status := olderQuestion("virtualmachines", `{}`, "", "")
	status.SubResource = "status"
	if code, _, text := (schemaAnswer{asked: new(older.Question)}).review(t, status); code != 400 {
		t.Errorf("a status: %d %s", code, text)
	}
	// An old object that cannot be read excuses nothing.
	asked := older.Question{}
	schemaAnswer{asked: &asked}.review(t, olderQuestion("virtualmachines", `{"spec":{}}`, strings.Repeat("[", 200)+strings.Repeat("]", 200), ""))
	if len(asked.Old) > 0 {
		t.Errorf("the old object is %s", asked.Old)
	}
}
