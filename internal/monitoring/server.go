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
	// maxStrangers is more than scrape it, and bounds what everybody else costs who
	// reaches the port.
	maxStrangers = 64
	// Between two attempts to listen.
	firstDelay   = time.Second
	longestDelay = time.Minute
)

// Handler answers with what is gathered. What goes wrong with one metric takes
// no other away.
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

// NeedLeaderElection tells the manager that one which does not lead has metrics too.
func (*Server) NeedLeaderElection() bool { return false }

// Start serves until ctx ends. It is a manager.Runnable. A port that somebody else
// has, on a node say, costs the metrics, and the program goes on.
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
	// Who is known, Access says (intake.Vouch).
	nobody := func(tls.ConnectionState) bool { return false }
	if err := server.Serve(tls.NewListener(intake.Listen(listener, maxStrangers), intake.Known(config, nobody))); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}
