// Package virthandler is the command line of virt-handler, which runs on every node.
// virt-handler gives launcher pods their slots, wires their networks, has their QEMUs started,
// and reports on them.
package virthandler

import (
	"flag"
	"fmt"
	"os"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/config"

	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/controllers/node/accelerator"
	"github.com/kubeqemu/kubeqemu/controllers/node/peers"
	"github.com/kubeqemu/kubeqemu/internal/component"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
	"github.com/kubeqemu/kubeqemu/internal/kvmcheck"
)

type options struct {
	node         string
	accelerator  string
	kubelet      string
	run          string
	address      string
	migrations   string
	nodeAddress  string
	launcherRoot string
	programs     string
	probes       string
	metrics      string
	verbosity    *component.Verbosity
}

// Main runs virt-handler with the arguments after its name until a signal ends it,
// and returns the exit status.
func Main(args []string) int {
	var o options
	flags := flag.NewFlagSet("virt-handler", flag.ContinueOnError)
	config.RegisterFlags(flags)
	flags.StringVar(&o.node, "node-name", os.Getenv("NODE_NAME"), "`name` of this node; default $NODE_NAME")
	flags.StringVar(&o.accelerator, "accelerator", "auto", "what runs the guests' CPUs: `kvm, tcg or auto`; auto is kvm where a check finds that KVM works. tcg emulates guests only where the KubeVirt object permits it")
	flags.StringVar(&o.kubelet, "kubelet-root", "/var/lib/kubelet", "the kubelet's root `folder`, with device-plugins and pod-resources in it")
	flags.StringVar(&o.run, "run-dir", "/run/kubeqemu", "`folder` on the host for slots and device nodes")
	flags.StringVar(&o.programs, "program-dir", "/var/lib/kubeqemu", "`folder` on the host, at the same path here, for the program that hands out container disks where pods have no image volumes")
	flags.StringVar(&o.address, "bind-address", fmt.Sprintf(":%d", handlerapi.Port), "`address` that serves virt-api, and nobody else, with TLS")
	flags.StringVar(&o.migrations, "migration-bind-address", fmt.Sprintf(":%d", peers.Port), "`address` that serves the virt-handlers of nodes from which guests come, with TLS")
	flags.StringVar(&o.nodeAddress, "node-address", os.Getenv("NODE_ADDRESS"), "`address` of this node, to which guests come from other nodes; default $NODE_ADDRESS")
	flags.StringVar(&o.launcherRoot, "launcher-root", "/launcher", "`folder` with virt-launcher's image, whose QEMU says which CPUs this node can give guests")
	flags.StringVar(&o.probes, "health-probe-bind-address", "127.0.0.1:8082", "`address` that serves /healthz and /readyz")
	flags.StringVar(&o.metrics, "metrics-bind-address", fmt.Sprintf(":%d", metricsPort), "`address` that serves /metrics, with TLS, to whom RBAC lets get it; 0 for none")
	return component.Main(flags, args, os.Stderr, func(log logr.Logger, verbosity *component.Verbosity) error {
		ctrl.SetLogger(log)
		o.verbosity = verbosity
		return run(o)
	})
}

func run(o options) error {
	if o.node == "" {
		return fmt.Errorf("--node-name or $NODE_NAME is required")
	}
	ctx := ctrl.SetupSignalHandler()
	kvm, err := toldOfKVM(o.accelerator)
	if err != nil {
		return err
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	kit.Reconnect(config)
	mgr, err := newHandler(config, o, accelerator.New(kvm))
	if err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// toldOfKVM is the verdict on KVM by the flag --accelerator. With auto it is Unknown, and a
// check follows.
func toldOfKVM(accelerator string) (kvmcheck.Result, error) {
	told := kvmcheck.Result{Reason: "virt-handler was told --accelerator=" + accelerator}
	switch accelerator {
	case "tcg":
		told.Verdict = kvmcheck.Broken
	case "kvm":
		told.Verdict = kvmcheck.Works
	case "auto":
		told = kvmcheck.Result{Verdict: kvmcheck.Unknown, Reason: "the check goes on"}
	default:
		return told, fmt.Errorf("--accelerator=%q: must be kvm, tcg or auto", accelerator)
	}
	return told, nil
}
