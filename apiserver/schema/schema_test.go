package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/kubeqemu/kubeqemu/apiserver/older"
	"github.com/kubeqemu/kubeqemu/config/crd"
	"github.com/kubeqemu/kubeqemu/internal/cputime"
)

// widgets is a small CRD. Answers for the real ones are compared with the API server's in
// test/admission.
const widgets = `
spec:
  group: example.com
  names: {kind: Widget, plural: widgets}
  scope: Namespaced
  versions:
  - name: v1alpha1
    served: true
    storage: false
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
  - name: v1
    served: true
    storage: true
    subresources:
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.selector}
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          apiVersion: {type: string}
          kind: {type: string}
          metadata: {type: object}
          status:
            type: object
            properties: {replicas: {type: integer}, selector: {type: string}}
          spec:
            type: object
            properties:
              replicas: {type: integer, format: int32, default: 1}
              colour: {type: string, enum: [red, green], default: red}
              size: {type: integer, minimum: 1}
              code: {type: string, pattern: "^[a-z]*$", maxLength: 10}
              either: {x-kubernetes-int-or-string: true}
              parts:
                type: array
                maxItems: 5
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items:
                  type: object
                  required: [name]
                  properties: {name: {type: string}, heavy: {type: boolean}}
            x-kubernetes-validations:
            - rule: "!has(self.code) || has(self.size)"
              message: a code needs a size
`

func widgetChecker() *Checker {
	return NewChecker(fstest.MapFS{"example.com_widgets.yaml": {Data: []byte(widgets)}})
}

func widget(spec string) json.RawMessage {
	return json.RawMessage(`{"apiVersion":"example.com/v1alpha1","kind":"Widget","metadata":{"name":"w"},"spec":` + spec + `}`)
}

func TestCheck(t *testing.T) {
	checker := widgetChecker()
	const defaults = `"colour":"red","replicas":1`
	for name, c := range map[string]struct {
		object, old string
		unknown     string
		want        string // the spec with defaults, or the paths of what is wrong
	}{
		"defaults":                  {`{}`, "", "", `{` + defaults + `}`},
		"whole numbers stay whole":  {`{"size":9007199254740993}`, "", "", `{` + defaults + `,"size":9007199254740993}`},
		"null":                      {`{"colour":null,"code":null}`, "", "", `{` + defaults + `}`},
		"unknown fields":            {`{"b":1,"a":{"c":2},"parts":[{"name":"x","d":3}]}`, "", "spec.a,spec.b,spec.parts[0].d", `{"colour":"red","parts":[{"name":"x"}],"replicas":1}`},
		"no spec":                   {`null`, "", "", "spec: Required value; <nil>: "},
		"another type":              {`7`, "", "", `spec: Invalid value: "integer": spec in body must be of type object: "integer"; .spec.replicas: ; <nil>: `},
		"an enumeration":            {`{"colour":"blue"}`, "", "", `spec.colour: Unsupported value: "blue"; <nil>: `},
		"a minimum":                 {`{"size":0}`, "", "", "spec.size: Invalid value: 0"},
		"a pattern":                 {`{"code":"A","size":1}`, "", "", "spec.code: Invalid value: "},
		"a rule":                    {`{"code":"a"}`, "", "", "spec: Invalid value: a code needs a size"},
		"a name twice":              {`{"parts":[{"name":"x"},{"name":"x"}]}`, "", "", "spec.parts[1]: Duplicate value"},
		"replicas to scale":         {`{"replicas":-1}`, "", "", ".spec.replicas: Invalid value: -1: should be a non-negative integer"},
		"replicas of another type":  {`{"replicas":"two"}`, "", "", `spec.replicas: Invalid value: "string"; .spec.replicas: ; <nil>: `},
		"wrong as it was":           {`{"colour":"blue","size":1}`, `{"colour":"blue"}`, "", `{"colour":"blue","replicas":1,"size":1}`},
		"wrong, and was right":      {`{"colour":"blue"}`, `{"colour":"red"}`, "", `spec.colour: Unsupported value: "blue"; <nil>: `},
		"against a rule, as it was": {`{"code":"a"}`, `{"code":"a"}`, "", `{"code":"a",` + defaults + `}`},
	} {
		question := older.Question{Group: "example.com", Resource: "widgets", Name: "w", Object: widget(c.object)}
		if c.old != "" {
			question.Old = widget(c.old)
		}
		answer, err := checker.Check(t.Context(), question)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if unknown := strings.Join(answer.Unknown, ","); unknown != c.unknown {
			t.Errorf("%s: unknown fields %s, want %s", name, unknown, c.unknown)
		}
		if answer.Invalid == nil {
			if want := strings.Replace(string(widget(c.want)), "v1alpha1", "v1", 1); string(answer.Object) != want {
				t.Errorf("%s: %s, want %s", name, answer.Object, want)
			}
			continue
		}
		causes := answer.Invalid.Details.Causes
		wanted := strings.Split(c.want, "; ")
		if answer.Object != nil || len(causes) != len(wanted) {
			t.Errorf("%s: %s, want %s", name, answer.Invalid.Message, c.want)
			continue
		}
		for i, cause := range causes {
			path, message, _ := strings.Cut(wanted[i], ": ")
			if cause.Field != path || !strings.Contains(cause.Message, message) {
				t.Errorf("%s: %s: %s, want %s", name, cause.Field, cause.Message, wanted[i])
			}
		}
	}
	for name, question := range map[string]older.Question{
		"no CRD":         {Group: "example.com", Resource: "gadgets", Object: widget(`{}`)},
		"another folder": {Group: "..", Resource: "x", Object: widget(`{}`)},
		"no object":      {Group: "example.com", Resource: "widgets", Object: json.RawMessage(`[]`)},
		"null":           {Group: "example.com", Resource: "widgets", Object: json.RawMessage(`null`)},
		"no old object":  {Group: "example.com", Resource: "widgets", Object: widget(`{}`), Old: json.RawMessage(`7`)},
	} {
		if answer, err := checker.Check(t.Context(), question); err == nil {
			t.Errorf("%s: %+v", name, answer)
		}
	}
}

// TestServe: questions are answered until there are no more, also after one that has no answer.
func TestServe(t *testing.T) {
	var questions, answers bytes.Buffer
	// Bytes that are no UTF-8 take one byte in the question, and three in the answer.
	long := `{"parts":[{"name":"` + strings.Repeat("\xff", 4<<20) + `"}]}`
	for _, question := range []older.Question{
		{Group: "example.com", Resource: "widgets", Object: widget(`{}`)},
		{Group: "example.com", Resource: "gadgets", Object: widget(`{}`)},
		{Group: "example.com", Resource: "widgets", Object: widget(long)},
		{Group: "example.com", Resource: "widgets", Object: widget(`{}`)},
	} {
		if err := older.Write(&questions, question); err != nil {
			t.Fatal(err)
		}
	}
	if err := Serve(widgetChecker(), &questions, &answers); err != nil {
		t.Fatal(err)
	}
	for _, failure := range []string{"", "gadgets", "may have", ""} {
		var answer older.Answer
		if err := older.Read(&answers, &answer); err != nil || (answer.Failure == "") != (failure == "") || !strings.Contains(answer.Failure, failure) {
			t.Errorf("%+v, %v, want %q", answer, err, failure)
		}
	}
	if err := Serve(widgetChecker(), strings.NewReader("\x00\x00\x00\x02ab"), &answers); err == nil {
		t.Error("junk is a question")
	}
	if err := Serve(widgetChecker(), strings.NewReader("\x00\x00"), &answers); err == nil || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("half a question: %v", err)
	}
}

// TestBounds: answers are short, whatever is asked.
func TestBounds(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	var fields, parts, longer []string
	for i := range 200 {
		longer = append(longer, fmt.Sprintf(`"%d%s":1`, i, long[:maxText]))
	}
	for i := range 4_000 { // virt-api lets no more through
		fields = append(fields, fmt.Sprintf(`"f%d":1`, i))
		parts = append(parts, `[]`)
	}
	checker := widgetChecker()
	for name, spec := range map[string]string{
		"many unknown fields":      `{` + strings.Join(fields, ",") + `}`,
		"many long names":          `{` + strings.Join(longer, ",") + `}`,
		"long names":               `{"` + long + `":1,"` + long + `y":1}`,
		"many errors":              `{"parts":[` + strings.Join(parts, ",") + `]}`,
		"a long value":             `{"colour":"` + long + `"}`,
		"a long value as a whole":  `{"parts":"` + long + `"}`,
		"a long value in an error": `{"replicas":{"` + long + `":"` + long + `"}}`,
	} {
		var answer older.Answer
		took := cputime.Of(t, func() {
			var err error
			if answer, err = checker.Check(t.Context(), older.Question{Group: "example.com", Resource: "widgets", Object: widget(spec)}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
		answer.Object = nil
		text, err := json.Marshal(answer)
		if err != nil || len(text) > 3*maxTexts {
			t.Errorf("%s: an answer of %d bytes, %v", name, len(text), err)
		}
		if took > 3*time.Second {
			t.Errorf("%s took %s", name, took)
		}
	}
}

// FuzzCheck: whatever is sent, there is an answer or an error, and what passes is what passes in
// the stored version.
func FuzzCheck(f *testing.F) {
	for _, spec := range []string{`{}`, `{"colour":null,"parts":[{"name":"a"},{"name":"a"}]}`, `{"replicas":1.5,"code":"a","either":"b"}`, `[[{}]]`} {
		f.Add([]byte(spec), []byte(spec))
	}
	checker, real := widgetChecker(), NewChecker(crd.Files)
	f.Fuzz(func(t *testing.T, spec, old []byte) {
		if !json.Valid(spec) || !json.Valid(old) {
			return
		}
		for _, question := range []older.Question{
			{Group: "example.com", Resource: "widgets", Object: widget(string(spec)), Old: widget(string(old))},
			{Group: "example.com", Resource: "widgets", Object: widget(string(spec))},
			{Group: "kubevirt.io", Resource: "virtualmachines", Object: widget(string(spec))},
		} {
			c := checker
			if question.Group == "kubevirt.io" {
				c = real
			}
			answer, err := c.Check(t.Context(), question)
			if err != nil || answer.Invalid != nil {
				continue
			}
			again, err := c.Check(t.Context(), older.Question{Group: question.Group, Resource: question.Resource, Object: answer.Object, Old: question.Old})
			if err != nil || again.Invalid != nil || len(again.Unknown) > 0 || !bytes.Equal(again.Object, answer.Object) {
				t.Errorf("%s passes, and becomes %+v (%v)", answer.Object, again, err)
			}
		}
	})
}
