package apiserver

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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
	synctest.Test(t, func(t *testing.T) {
		listener := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- (&Server{options: Options{Log: logr.Discard()}}).serve(ctx, listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }))
		}()
		client := &http.Client{Transport: &http.Transport{DialContext: listener.dial}}
		defer client.CloseIdleConnections()
		ask := func() bool {
			response, err := client.Post("http://virt-api", "text/plain", strings.NewReader("?"))
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
		synctest.Wait()
		for range 3 {
			if !ask() {
				t.Error("a connection is kept to one that ends")
			}
			time.Sleep(lastCall / 4)
		}
		begin := time.Now()
		if err := <-ended; err != nil || time.Since(begin) != lastCall/4 {
			t.Errorf("it ends %s later: %v", time.Since(begin), err)
		}
	})
}

// pipes is a listener without a network, which needs the clock of the machine.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipes) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error { l.once.Do(func() { close(l.closed) }); return nil }

func (l *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }
