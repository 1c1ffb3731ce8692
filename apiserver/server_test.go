package apiserver

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
)

// TestProbes: it lives before it is ready; what it is ready for is in
// test/admission.
func TestProbes(t *testing.T) {
	server, err := New(&rest.Config{Host: "127.0.0.1:1"}, Options{Log: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	for path, c := range map[string]struct {
		handler http.Handler
		code    int
		says    string
	}{
		"/healthz": {server.probes(), http.StatusOK, "ok"},
		"/readyz":  {server.probes(), http.StatusServiceUnavailable, "KubeVirts have not been read"},
		"/other":   {server.probes(), http.StatusNotFound, ""},
		"/metrics": {metrics(), http.StatusOK, "go_goroutines"},
	} {
		recorder := httptest.NewRecorder()
		c.handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, path, nil))
		body, err := io.ReadAll(recorder.Body)
		if err != nil || recorder.Code != c.code || !strings.Contains(string(body), c.says) {
			t.Errorf("%s: %d %.200s (%v), want %d", path, recorder.Code, body, err, c.code)
		}
	}
	// Without the configuration nothing is decided.
	recorder := httptest.NewRecorder()
	server.mux.ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, "/virtualmachineinstances-mutate",
		strings.NewReader(`{"apiVersion":"admission.k8s.io/v1","request":{}}`)))
	if recorder.Code != http.StatusInternalServerError {
		t.Errorf("a question before the KubeVirts were read: %d", recorder.Code)
	}
}
