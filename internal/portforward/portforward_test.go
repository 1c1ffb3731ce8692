package portforward

import (
	"bytes"
	"context"
	"errors"
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
)

const port = 8444

// kubelet is a server of pods/portforward. Each stream with data goes to the handler.
func kubelet(t *testing.T, data func(io.ReadWriter)) *Dialer {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces/ns/pods/importer-data/portforward" || r.Method != http.MethodPost || r.Header.Get("Authorization") != "Bearer token" {
			http.Error(w, "no such pod", http.StatusNotFound)
			return
		}
		if _, err := httpstream.Handshake(r, w, []string{protocol}); err != nil {
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
				if s.Headers().Get(corev1.PortHeader) != fmt.Sprint(port) {
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
	f, err := New(&rest.Config{Host: server.URL, BearerToken: "token", TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

var pod = types.NamespacedName{Namespace: "ns", Name: "importer-data"}

// TestEachStreamIsAConnection: each stream is a connection of its own, in both directions.
func TestEachStreamIsAConnection(t *testing.T) {
	connection, err := kubelet(t, func(s io.ReadWriter) {
		text, err := io.ReadAll(s)
		if err == nil {
			fmt.Fprintf(s, "%d bytes", len(text))
		}
	}).Dial(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	for i := range 3 {
		stream, err := connection.Open(t.Context(), port)
		if err != nil {
			t.Fatal(err)
		}
		size := i << 20
		_, err = stream.Write(make([]byte, size))
		got, err2 := "", stream.CloseWrite()
		if answer, err3 := io.ReadAll(stream); true {
			got, err = string(answer), errors.Join(err, err2, err3)
		}
		if err != nil || got != fmt.Sprintf("%d bytes", size) {
			t.Errorf("%q, %v", got, err)
		}
		stream.Close()
	}
}

// TestConnectionEndsWithItsContext: a connection ends with the context of its stream.
func TestConnectionEndsWithItsContext(t *testing.T) {
	hold := make(chan struct{})
	defer close(hold)
	connection, err := kubelet(t, func(io.ReadWriter) { <-hold }).Dial(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := connection.Open(ctx, port)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	defer time.AfterFunc(100*time.Millisecond, cancel).Stop()
	if n, err := stream.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes were read", n)
	}
}

// TestFailedDialEndsWithItsContext: so does a connection that is refused, or that nobody answers.
func TestFailedDialEndsWithItsContext(t *testing.T) {
	if c, err := kubelet(t, func(io.ReadWriter) {}).Dial(t.Context(), types.NamespacedName{Namespace: "ns", Name: "other"}); err == nil {
		c.Close()
		t.Error("a pod that is not there was connected to")
	}
	hold := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hold }))
	defer server.Close()
	defer close(hold)
	f, err := New(&rest.Config{Host: server.URL})
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

// TestHostileNodeCostsLittle: a node makes its peer keep little, whatever it sends.
func TestHostileNodeCostsLittle(t *testing.T) {
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
