package apiserver

import (
	"fmt"
	"log"
	"net/http"
	"strings"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/kubeqemu/kubeqemu/monitoring"
)

// probes answer the kubelet.
func (s *Server) probes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}

// metrics are the process's own.
func metrics() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), monitoring.Up("virt_api"))
	return monitoring.Handler(registry)
}

// logTo has net/http say what it has to say, such as of peers that do not get
// through the handshake, where it is seldom wanted.
func logTo(to logr.Logger) *log.Logger { return log.New(lines{to.V(1)}, "", 0) }

type lines struct{ to logr.Logger }

func (l lines) Write(text []byte) (int, error) {
	l.to.Info(strings.TrimSpace(string(text)))
	return len(text), nil
}
