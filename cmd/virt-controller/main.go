// Command virt-controller turns VirtualMachines into VirtualMachineInstances, and
// these into launcher pods, and follows them.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"

	instancetypev1beta1 "github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	poolv1beta1 "github.com/kubeqemu/kubeqemu/api/pool/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

type options struct {
	launcherImage string
	leaderElect   bool
	probes        string
	metrics       string
	verbose       bool
}

func main() {
	var o options
	flag.StringVar(&o.launcherImage, "launcher-image", "", "container `image` of virt-launcher (required)")
	flag.BoolVar(&o.leaderElect, "leader-elect", false, "of several virt-controllers, only one works; needed for more than one replica")
	flag.StringVar(&o.probes, "health-probe-bind-address", ":8081", "`address` that serves /healthz and /readyz")
	flag.StringVar(&o.metrics, "metrics-bind-address", ":8443", "`address` that serves /metrics, with TLS, to whom RBAC lets get it; 0 for none")
	flag.BoolVar(&o.verbose, "verbose", false, "log more")
	flag.Parse()
	// A scrape leaves as much garbage as all else lives on: memory counts for more
	// than the time of collecting it.
	debug.SetGCPercent(25)
	level := slog.LevelInfo
	if o.verbose {
		level = slog.LevelDebug
	}
	ctrl.SetLogger(logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level})))
	if err := run(o); err != nil {
		fmt.Fprintf(os.Stderr, "virt-controller: %v\n", err)
		os.Exit(1)
	}
}

func run(o options) error {
	if o.launcherImage == "" {
		return fmt.Errorf("--launcher-image is required")
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	kit.Reconnect(config)
	mgr, err := newManager(config, o)
	if err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}

func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	if err := scheme.AddToScheme(s); err != nil {
		return nil, err
	}
	return s, errors.Join(v1.AddToScheme(s), instancetypev1beta1.AddToScheme(s), poolv1beta1.AddToScheme(s))
}
