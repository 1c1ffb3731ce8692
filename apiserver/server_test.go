package apiserver

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
)

// TestLiveBeforeReady: it lives before it is ready; what it is ready for is in
// test/admission.
func TestLiveBeforeReady(t *testing.T) {
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

// TestShutdownAnswersEachConnection: told to end, it answers on, and each connection ends with an
// answer, so that no question is lost with one.
func TestShutdownAnswersEachConnection(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- (&Server{options: Options{Log: logr.Discard()}}).serve(ctx, listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }))
	}()
	client := &http.Client{Transport: &http.Transport{}}
	ask := func() bool {
		response, err := client.Post("http://"+listener.Addr().String(), "text/plain", strings.NewReader("?"))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			t.Fatal(err)
		}
		return response.Close
	}
	if ask() {
		t.Error("a connection was used once")
	}
	end()
	for range 100 {
		if ask() {
			break
		}
	}
	for range 2 {
		if !ask() {
			t.Error("a connection is kept to one that ends")
		}
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(lastCall + 5*time.Second):
		t.Error("it does not end")
	}
}
