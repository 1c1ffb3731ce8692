package monitoring

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kubeqemu/kubeqemu/internal/intake"
	"github.com/kubeqemu/kubeqemu/internal/timer"
)

const (
	// scrapesAtOnce: two Prometheus servers, and somebody who looks.
	scrapesAtOnce = 3
	scrapeTimeout = 10 * time.Second
	// maxStrangers, in connections, is more than the scrapers make. It bounds what anybody else
	// who reaches the port can cost.
	maxStrangers = 64
	// Delays between two attempts to listen.
	firstDelay   = time.Second
	longestDelay = time.Minute
)

// Handler answers with the gathered metrics. An error in one metric does not suppress the
// others.
func Handler(from prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+Path, promhttp.HandlerFor(from, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: scrapesAtOnce, Timeout: scrapeTimeout}))
	return mux
}

// Server serves Handler with TLS.
type Server struct {
	Address     string
	Handler     http.Handler
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Log         logr.Logger
}

// NeedLeaderElection tells the manager to serve metrics even while another one leads.
func (*Server) NeedLeaderElection() bool { return false }

// Start serves until ctx ends. It is a manager.Runnable. If another process has the port, on a
// node say, there are no metrics, and the program goes on.
func (s *Server) Start(ctx context.Context) error {
	for delay := firstDelay; ; delay = min(2*delay, longestDelay) {
		err := s.serve(ctx)
		if ctx.Err() != nil {
			return nil
		}
		s.Log.Error(err, "there are no metrics", "retryIn", delay.String())
		if !timer.Wait(delay, ctx.Done()) {
			return nil
		}
	}
}

func (s *Server) serve(ctx context.Context) error {
	listener, err := net.Listen("tcp", s.Address)
	if err != nil {
		return fmt.Errorf("listen for scrapes: %w", err)
	}
	server := intake.Server(s.Handler, s.Log)
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: s.Certificate, NextProtos: []string{"http/1.1"}}
	// No certificate makes a peer known: Access does so (intake.Vouch).
	nobody := func(tls.ConnectionState) bool { return false }
	if err := server.Serve(tls.NewListener(intake.Listen(listener, maxStrangers), intake.Known(config, nobody))); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}
