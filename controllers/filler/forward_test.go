package filler

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/kubeqemu/kubeqemu/internal/importer"
)

// kubelet is a server of pods/portforward. Each stream with data goes to the handler.
func kubelet(t *testing.T, data func(io.ReadWriter)) *Forwarder {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces/ns/pods/importer-data/portforward" || r.Method != http.MethodPost || r.Header.Get("Authorization") != "Bearer token" {
			http.Error(w, "no such pod", http.StatusNotFound)
			return
		}
		if _, err := httpstream.Handshake(r, w, []string{forwardProtocol}); err != nil {
			return
		}
		streams := make(chan httpstream.Stream, 16)
		connection := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
			streams <- s
			return nil
		})
		if connection == nil {
			return
		}
		defer connection.Close()
		for {
			select {
			case s := <-streams:
				if s.Headers().Get(corev1.PortHeader) != fmt.Sprint(importer.Port) {
					t.Errorf("port %s", s.Headers().Get(corev1.PortHeader))
				}
				if s.Headers().Get(corev1.StreamType) == corev1.StreamTypeData {
					go func() { data(s); s.Close() }()
				}
			case <-connection.CloseChan():
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	f, err := NewForwarder(&rest.Config{Host: server.URL, BearerToken: "token", TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

var pod = types.NamespacedName{Namespace: "ns", Name: "importer-data"}

func answer(body string) func(io.ReadWriter) {
	return func(s io.ReadWriter) {
		request, err := http.ReadRequest(bufio.NewReader(s))
		if err != nil || request.URL.Path != importer.ProgressPath {
			return
		}
		fmt.Fprintf(s, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n%s", body)
	}
}

func TestForward(t *testing.T) {
	want := importer.Progress{Done: 3, Total: 7, Anew: 1, AnewReason: "changed"}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	connection, err := kubelet(t, answer(string(text))).Dial(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	for range 3 {
		got, err := connection.Ask(t.Context())
		if err != nil || got.Done != 3 || got.AnewReason != "changed" {
			t.Fatalf("%+v, %v", got, err)
		}
	}
}

// TestForwardBad: whatever is in the importer's place, the question ends with an error.
func TestForwardBad(t *testing.T) {
	endless := func(begin string) func(io.ReadWriter) {
		return func(s io.ReadWriter) {
			io.WriteString(s, begin)
			for {
				if _, err := io.WriteString(s, strings.Repeat("x", 1<<10)); err != nil {
					return
				}
			}
		}
	}
	for name, data := range map[string]func(io.ReadWriter){
		"nothing":      func(io.ReadWriter) {},
		"no JSON":      answer("x"),
		"a long text":  answer(`{"done":1,"anewReason":"` + strings.Repeat("x", 2*maxAnswer) + `"}`),
		"no HTTP":      endless("hello "),
		"endless head": endless("HTTP/1.1 200 OK\r\nA: "),
		"endless body": endless("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"),
		"another code": func(s io.ReadWriter) { io.WriteString(s, "HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n") },
	} {
		t.Run(name, func(t *testing.T) {
			connection, err := kubelet(t, data).Dial(t.Context(), pod)
			if err != nil {
				t.Fatal(err)
			}
			defer connection.Close()
			if p, err := connection.Ask(t.Context()); err == nil {
				t.Errorf("%+v", p)
			}
		})
	}
}

// TestForwardHangs: a question ends with its context.
func TestForwardHangs(t *testing.T) {
	hold := make(chan struct{})
	defer close(hold)
	connection, err := kubelet(t, func(io.ReadWriter) { <-hold }).Dial(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if p, err := connection.Ask(ctx); err == nil {
		t.Errorf("%+v", p)
	}
}

// TestDialFails: so does a connection that is refused, or that nobody answers.
func TestDialFails(t *testing.T) {
	if c, err := kubelet(t, answer("")).Dial(t.Context(), types.NamespacedName{Namespace: "ns", Name: "other"}); err == nil {
		c.Close()
		t.Error("a pod that is not there was connected to")
	}
	hold := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hold }))
	defer server.Close()
	defer close(hold)
	f, err := NewForwarder(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if c, err := f.Dial(ctx, pod); err == nil {
		c.Close()
		t.Error("a server that does not answer was connected to")
	}
}

// TestBounded: a node makes virt-controller keep little, whatever it sends.
func TestBounded(t *testing.T) {
	frame := func(control bool, kind byte, length int) []byte {
		head := []byte{0, 3, 0, kind, 0, byte(length >> 16), byte(length >> 8), byte(length)}
		if control {
			head[0] = 0x80
		}
		return append(head, make([]byte, length)...)
	}
	for name, c := range map[string]struct {
		sent []byte
		want string
	}{
		"good":                  {append(frame(false, 0, 400), frame(true, 2, 12)...), ""},
		"a large frame":         {frame(false, 0, maxFrame+1), "too much"},
		"a frame of its length": {frame(false, 0, maxFrame), ""},
		"many frames":           {bytes.Repeat(frame(false, 0, maxFrame), maxReceived/maxFrame), "too much"},
		"a stream of its own":   {frame(true, synStream, 20), "opens a stream"},
	} {
		ours, theirs := net.Pipe()
		go func() { theirs.Write(c.sent); theirs.Close() }()
		got, err := io.ReadAll(&bounded{Conn: ours, left: maxReceived})
		ours.Close()
		switch {
		case c.want == "" && (err != nil || !bytes.Equal(got, c.sent)):
			t.Errorf("%s: %d bytes of %d (%v)", name, len(got), len(c.sent), err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
