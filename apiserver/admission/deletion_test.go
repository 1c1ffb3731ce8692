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
	"k8s.io/apimachinery/pkg/types"
)

// TestDeletionGivesTheGuestItsGracePeriod: only the API server's questions have an effect, and each deletion is allowed.
func TestDeletionGivesTheGuestItsGracePeriod(t *testing.T) {
	key := []byte("key")
	const review = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"` + question + `","kind":{"group":"kubevirt.io","version":"v1","kind":"%s"},"name":"one","namespace":"blue","operation":"DELETE","dryRun":%v,"options":%s}}`
	of := func(kind string, seconds int64) *Deletion {
		return &Deletion{Kind: kind, Object: types.NamespacedName{Namespace: "blue", Name: "one"}, GraceSeconds: seconds}
	}
	for name, c := range map[string]struct {
		path, body string // the secret's, by default
		keys, err  error
		code       int // 200 by default
		want       *Deletion
		warning    string
	}{
		"a VM":  {body: fmt.Sprintf(review, "VirtualMachine", false, `{"gracePeriodSeconds":0}`), want: of("VirtualMachine", 0)},
		"a VMI": {body: fmt.Sprintf(review, "VirtualMachineInstance", false, `{"gracePeriodSeconds":7}`), want: of("VirtualMachineInstance", 7)},
		"one of a collection": {body: strings.Replace(fmt.Sprintf(review, "VirtualMachine", false, `{"gracePeriodSeconds":3}`), `"name":"one"`, `"name":"","oldObject":{"metadata":{"name":"one"}}`, 1),
			want: of("VirtualMachine", 3)},
		"a negative period":  {body: fmt.Sprintf(review, "VirtualMachine", false, `{"gracePeriodSeconds":-1}`), want: of("VirtualMachine", 0)},
		"a dry run":          {body: fmt.Sprintf(review, "VirtualMachine", true, `{"gracePeriodSeconds":0}`)},
		"no period":          {body: fmt.Sprintf(review, "VirtualMachine", false, `{}`)},
		"no options":         {body: fmt.Sprintf(review, "VirtualMachine", false, `null`)},
		"the VMI stays":      {body: fmt.Sprintf(review, "VirtualMachine", false, `{"gracePeriodSeconds":0,"propagationPolicy":"Orphan"}`)},
		"the VMI stays, too": {body: fmt.Sprintf(review, "VirtualMachine", false, `{"gracePeriodSeconds":0,"orphanDependents":true}`)},
		"the VMI itself": {body: fmt.Sprintf(review, "VirtualMachineInstance", false, `{"gracePeriodSeconds":0,"propagationPolicy":"Orphan"}`),
			want: of("VirtualMachineInstance", 0)},
		"no answer": {body: fmt.Sprintf(review, "VirtualMachine", false, `{"gracePeriodSeconds":0}`), err: errors.New("no answer"),
			want: of("VirtualMachine", 0), warning: "the guest of VirtualMachine one keeps its own grace period: no answer"},
		"a stranger":         {path: DeletionPath.SecretPath([]byte("other")), body: fmt.Sprintf(review, "VirtualMachine", false, `{"gracePeriodSeconds":0}`), code: http.StatusBadRequest},
		"without a secret":   {path: DeletionPath.Path, body: fmt.Sprintf(review, "VirtualMachine", false, `{"gracePeriodSeconds":0}`), code: http.StatusNotFound},
		"eviction's secret":  {path: EvictionPath.SecretPath(key), body: fmt.Sprintf(review, "VirtualMachine", false, `{"gracePeriodSeconds":0}`), code: http.StatusNotFound},
		"there is no CA yet": {body: fmt.Sprintf(review, "VirtualMachine", false, `{"gracePeriodSeconds":0}`), keys: errors.New("no CA"), code: http.StatusInternalServerError},
		"too long":           {body: strings.Repeat("x", MaxReview+1), code: http.StatusRequestEntityTooLarge},
		"no review":          {body: `{}`, code: http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []Deletion
			mux := http.NewServeMux()
			RegisterDeletions(mux, &Deletions{
				Shorten: func(_ context.Context, d Deletion) error { asked = append(asked, d); return c.err },
				Keys:    func() ([][]byte, error) { return [][]byte{key}, c.keys },
			})
			if c.path == "" {
				c.path = DeletionPath.SecretPath(key)
			}
			recorder := httptest.NewRecorder()
			mux.ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, c.path, strings.NewReader(c.body)))
			if code := max(c.code, http.StatusOK); recorder.Code != code {
				t.Fatalf("%d %s, want %d", recorder.Code, recorder.Body, code)
			}
			if c.want == nil && len(asked) > 0 || c.want != nil && (len(asked) != 1 || asked[0] != *c.want) {
				t.Errorf("asked %+v, want %+v", asked, c.want)
			}
			if c.code != 0 {
				return
			}
			var said admissionv1.AdmissionReview
			if err := json.Unmarshal(recorder.Body.Bytes(), &said); err != nil || said.Response == nil || said.Response.UID != question || !said.Response.Allowed {
				t.Fatalf("%s: %v", recorder.Body, err)
			}
			if got := strings.Join(said.Response.Warnings, "\n"); got != c.warning {
				t.Errorf("warns %q, want %q", got, c.warning)
			}
		})
	}
}

// TestDeletionsOfOneNamespaceKeepRoomForOthers: what waits for a guest that does not answer takes no more than its namespace's part.
func TestDeletionsOfOneNamespaceKeepRoomForOthers(t *testing.T) {
	asked, answer := make(chan string, maxAsking), make(chan struct{})
	d := &Deletions{Shorten: func(_ context.Context, d Deletion) error {
		asked <- d.Object.Namespace
		<-answer
		return nil
	}}
	RegisterDeletions(http.NewServeMux(), d)
	answered := make(chan *admissionv1.AdmissionResponse, deletionShare)
	ask := func(namespace string) {
		answered <- d.answer(t.Context(), Deletion{Kind: "VirtualMachine", Object: types.NamespacedName{Namespace: namespace, Name: "one"}})
	}
	for range deletionShare {
		go ask("blue")
		<-asked
	}
	if over := d.answer(t.Context(), Deletion{Object: types.NamespacedName{Namespace: "blue"}}); len(over.Warnings) != 1 || !over.Allowed {
		t.Errorf("one more of the namespace: %+v, want a warning at once", over)
	}
	go ask("green")
	if other := <-asked; other != "green" {
		t.Errorf("%s is asked about, want green", other)
	}
	close(answer)
	for range deletionShare + 1 {
		if a := <-answered; len(a.Warnings) > 0 {
			t.Errorf("%+v", a)
		}
	}
}
