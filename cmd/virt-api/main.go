// Command virt-api answers for kubevirt.io where the API server asks: admission
// of new and changed objects.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/kubeqemu/kubeqemu/apiserver"
	"github.com/kubeqemu/kubeqemu/apiserver/serving"
	"github.com/kubeqemu/kubeqemu/internal/authority"
)

func main() {
	var o apiserver.Options
	var kubeconfig string
	var verbose bool
	flag.StringVar(&o.Address, "bind-address", ":8443", "`address` that serves the API server, and /metrics to whom RBAC lets get it")
	flag.StringVar(&o.Probes, "health-probe-bind-address", ":8081", "`address` that serves /healthz and /readyz")
	flag.StringVar(&kubeconfig, "kubeconfig", "", "`file` that names the API server, where it is not that of the pod")
	flag.BoolVar(&verbose, "verbose", false, "log more")
	flag.Parse()
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	// It is asked seldom, and then for little: memory counts for more than the
	// time of collecting it.
	debug.SetGCPercent(25)
	o.Log = logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	klog.SetLogger(o.Log) // client-go's
	if err := run(kubeconfig, o); err != nil {
		fmt.Fprintf(os.Stderr, "virt-api: %v\n", err)
		os.Exit(1)
	}
}

func run(kubeconfig string, o apiserver.Options) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	config = rest.AddUserAgent(config, "virt-api")
	o.DNSNames = []string{serving.ServiceName, authority.MetricsName}
	server, err := apiserver.New(config, o)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return server.Run(ctx)
}
