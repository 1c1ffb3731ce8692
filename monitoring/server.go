package monitoring

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// scrapesAtOnce: two Prometheus servers, and somebody who looks.
	scrapesAtOnce = 3
	scrapeTimeout = 10 * time.Second
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 16 << 10
	// Between two attempts to listen.
	firstPause   = time.Second
	longestPause = time.Minute
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
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := s.serve(ctx)
		if ctx.Err() != nil {
			return nil
		}
		s.Log.Error(err, "there are no metrics", "retryIn", pause.String())
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

func (s *Server) serve(ctx context.Context) error {
	listener, err := net.Listen("tcp", s.Address)
	if err != nil {
		return fmt.Errorf("listen for scrapes: %w", err)
	}
	server := &http.Server{Handler: s.Handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader, ErrorLog: log.New(lines{s.Log.V(1)}, "", 0)}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: s.Certificate, NextProtos: []string{"http/1.1"}}
	if err := server.Serve(tls.NewListener(listener, config)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}

// lines has net/http tell of peers that do not get in where it is seldom wanted.
type lines struct{ to logr.Logger }

func (l lines) Write(text []byte) (int, error) {
	l.to.Info(strings.TrimSpace(string(text)))
	return len(text), nil
}
