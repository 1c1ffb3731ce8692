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
	"testing/synctest"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeqemu/kubeqemu/apiserver/evacuation"
)

func TestEvictionReviews(t *testing.T) {
	key := []byte("key")
	const review = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"` + question + `","name":"virt-launcher-vm-0123456789","namespace":"blue","operation":"CREATE","subResource":"eviction","dryRun":%v,"object":%s}}`
	plain := fmt.Sprintf(review, false, `{}`)
	for name, c := range map[string]struct {
		path, body string
		keys, err  error
		code       int
		want       evacuation.Eviction
		answer     int32 // 0 if it is allowed
		said       string
	}{
		"allowed":                {path: EvictionPath.SecretPath(key), body: plain, code: 200, want: evacuation.Eviction{Trusted: true}},
		"refused":                {path: EvictionPath.SecretPath(key), body: plain, err: apierrors.NewTooManyRequests("leave", 0), code: 200, want: evacuation.Eviction{Trusted: true}, answer: 429, said: "leave"},
		"another error":          {path: EvictionPath.SecretPath(key), body: plain, err: errors.New("broken"), code: 200, want: evacuation.Eviction{Trusted: true}, answer: 429, said: "virt-api cannot tell whether the pod may be evicted: broken: try again"},
		"no secret":              {path: EvictionPath.Path, body: plain, code: 200},
		"another secret":         {path: EvictionPath.SecretPath([]byte("other")), body: plain, code: 200},
		"a dry run":              {path: EvictionPath.Path, body: fmt.Sprintf(review, true, `{}`), code: 200, want: evacuation.Eviction{DryRun: true}},
		"a dry run by options":   {path: EvictionPath.Path, body: fmt.Sprintf(review, false, `{"deleteOptions":{"dryRun":["All"]}}`), code: 200, want: evacuation.Eviction{DryRun: true}},
		"an unreadable eviction": {path: EvictionPath.Path, body: fmt.Sprintf(review, false, `{"deleteOptions":7}`), code: 200, want: evacuation.Eviction{DryRun: true}},
		"no review":              {path: EvictionPath.Path, body: `{}`, code: http.StatusBadRequest},
		"too long":               {path: EvictionPath.Path, body: strings.Repeat("x", maxEviction+1), code: http.StatusRequestEntityTooLarge},
		"there is no CA yet":     {path: EvictionPath.Path, body: plain, keys: errors.New("no CA"), code: 200, answer: 429, said: "virt-api cannot tell whether the pod may be evicted: no CA: try again"},
		"below the secret":       {path: EvictionPath.SecretPath(key) + "/x", body: plain, code: http.StatusNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []evacuation.Eviction
			mux := http.NewServeMux()
			RegisterEvictions(mux, &Evictions{
				Evict: func(_ context.Context, e evacuation.Eviction) error { asked = append(asked, e); return c.err },
				Keys:  func() ([][]byte, error) { return [][]byte{key}, c.keys },
			})
			recorder := httptest.NewRecorder()
			mux.ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, c.path, strings.NewReader(c.body)))
			if recorder.Code != c.code {
				t.Fatalf("%d %s, want %d", recorder.Code, recorder.Body, c.code)
			}
			if c.code != 200 {
				if len(asked) > 0 {
					t.Errorf("asked %+v", asked)
				}
				return
			}
			c.want.Pod = types.NamespacedName{Namespace: "blue", Name: "virt-launcher-vm-0123456789"}
			if c.keys == nil && (len(asked) != 1 || asked[0] != c.want) {
				t.Errorf("asked %+v, want %+v", asked, c.want)
			}
			var said admissionv1.AdmissionReview
			if err := json.Unmarshal(recorder.Body.Bytes(), &said); err != nil || said.Response == nil || said.Response.UID != question {
				t.Fatalf("%s: %v", recorder.Body, err)
			}
			if r := said.Response; c.answer == 0 && !r.Allowed || c.answer != 0 && (r.Allowed || r.Result.Code != c.answer || r.Result.Message != c.said) {
				t.Errorf("%+v, want %d %q", r, c.answer, c.said)
			}
		})
	}
}

// TestFloodOfEvictionReviewsCostsLittle: however many strangers ask at once, the API server is asked little, and answered.
func TestFloodOfEvictionReviewsCostsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the clock stands still
		key, asked := []byte("key"), 0
		mux := http.NewServeMux()
		RegisterEvictions(mux, &Evictions{Evict: func(context.Context, evacuation.Eviction) error { asked++; return nil }, Keys: func() ([][]byte, error) { return [][]byte{key}, nil }})
		const review = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","name":"virt-launcher-vm-0123456789","namespace":"blue","operation":"CREATE","object":{}}}`
		ask := func(path string) string {
			recorder := httptest.NewRecorder()
			mux.ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, path, strings.NewReader(review)))
			return recorder.Body.String()
		}
		refused := 0
		for range 10 * strangerBurst {
			if strings.Contains(ask(EvictionPath.Path), errBusy.Error()) {
				refused++
			}
		}
		if asked != strangerBurst || asked+refused != 10*strangerBurst {
			t.Errorf("of %d strangers, %d were looked up, and %d were refused", 10*strangerBurst, asked, refused)
		}
		if said := ask(EvictionPath.SecretPath(key)); !strings.Contains(said, `"allowed":true`) {
			t.Errorf("the API server is told %s", said)
		}
	})
}
