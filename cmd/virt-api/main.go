// Command virt-api answers for kubevirt.io where the API server asks: admission
// of new and changed objects.
package main

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/kubeqemu/kubeqemu/controllers/reconnect"
)

type options struct {
	port    int
	probes  string
	metrics string
	verbose bool
}

func main() {
	var o options
	flag.IntVar(&o.port, "port", 8443, "TCP `port` that serves the API server")
	flag.StringVar(&o.probes, "health-probe-bind-address", ":8081", "`address` that serves /healthz and /readyz")
	flag.StringVar(&o.metrics, "metrics-bind-address", "0", "`address` that serves /metrics; 0 for none")
	flag.BoolVar(&o.verbose, "verbose", false, "log more")
	flag.Parse()
	level := slog.LevelInfo
	if o.verbose {
		level = slog.LevelDebug
	}
	// It is asked seldom, and then for little: memory counts for more than the
	// time of collecting it.
	debug.SetGCPercent(25)
	ctrl.SetLogger(logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level})))
	if err := run(o); err != nil {
		fmt.Fprintf(os.Stderr, "virt-api: %v\n", err)
		os.Exit(1)
	}
}

func run(o options) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	reconnect.Wrap(config)
	mgr, err := newManager(config, o)
	if err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}
