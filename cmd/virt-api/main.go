// Package virtapi is the command line of virt-api. virt-api answers the API server for
// kubevirt.io (admission and subresources), and serves the web page.
package virtapi

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/kubeqemu/kubeqemu/apiserver"
	"github.com/kubeqemu/kubeqemu/apiserver/serving"
	"github.com/kubeqemu/kubeqemu/internal/authority"
	"github.com/kubeqemu/kubeqemu/internal/component"
)

// Main runs virt-api with the arguments after its name until a signal ends it, and
// returns the exit status.
func Main(args []string) int {
	var o apiserver.Options
	var kubeconfig string
	flags := flag.NewFlagSet("virt-api", flag.ContinueOnError)
	flags.StringVar(&o.Address, "bind-address", ":8443", "`address` that serves the API server, and /metrics to whom RBAC lets get it")
	flags.StringVar(&o.Probes, "health-probe-bind-address", ":8081", "`address` that serves /healthz and /readyz")
	flags.StringVar(&o.Node, "node-name", os.Getenv("NODE_NAME"), "`name` of this node, for the KubeVirt object's nodeVerbosity; default $NODE_NAME")
	flags.BoolVar(&o.DataVolumes, "data-volumes", false, "take uploaded images for the DataVolumes that virt-controller fills")
	flags.StringVar(&kubeconfig, "kubeconfig", "", "`file` that names the API server, where it is not that of the pod")
	return component.Main(flags, args, os.Stderr, func(log logr.Logger, verbosity *component.Verbosity) error {
		o.Log, o.SetVerbosity = log, verbosity.Set
		klog.SetLogger(log) // client-go's
		return run(kubeconfig, o)
	})
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
