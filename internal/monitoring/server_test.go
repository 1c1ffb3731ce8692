package monitoring

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// TestTakenPortIsTriedAgain: a port that somebody else has ends nothing, and is taken once it
// is free.
func TestTakenPortIsTriedAgain(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	server := &Server{Address: other.Addr().String(), Handler: http.NotFoundHandler(), Log: testr.New(t),
		Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, errors.New("there is none yet") }}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Start(ctx) }()
	select {
	case err := <-ended:
		t.Fatalf("it has ended: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	other.Close()
	testkit.Eventually(t, "somebody who listens on the port that is free", func() error {
		conn, err := net.Dial("tcp", server.Address)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("at its end: %v", err)
	}
}
