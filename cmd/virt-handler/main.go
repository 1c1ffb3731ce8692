// Command virt-handler runs on every node: it gives launcher pods their slots,
// wires their networks, has their QEMUs started, and reports on them.
package main

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/kubeqemu/kubeqemu/controllers/reconnect"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

type options struct {
	node        string
	accelerator string
	kubelet     string
	run         string
	probes      string
	metrics     string
	verbose     bool
}

func main() {
	var o options
	flag.StringVar(&o.node, "node-name", os.Getenv("NODE_NAME"), "`name` of this node; default $NODE_NAME")
	flag.StringVar(&o.accelerator, "accelerator", "auto", "what runs the guests' CPUs: `kvm, tcg or auto`; auto means tcg until KVM is proven to work, which virt-handler cannot do yet")
	flag.StringVar(&o.kubelet, "kubelet-root", "/var/lib/kubelet", "the kubelet's root `folder`, with device-plugins and pod-resources in it")
	flag.StringVar(&o.run, "run-dir", "/run/kubeqemu", "`folder` on the host for slots and device nodes")
	flag.StringVar(&o.probes, "health-probe-bind-address", "127.0.0.1:8082", "`address` that serves /healthz and /readyz")
	flag.StringVar(&o.metrics, "metrics-bind-address", "0", "`address` that serves /metrics; 0 for none")
	flag.BoolVar(&o.verbose, "verbose", false, "log more")
	flag.Parse()
	level := slog.LevelInfo
	if o.verbose {
		level = slog.LevelDebug
	}
	ctrl.SetLogger(logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level})))
	if err := run(o); err != nil {
		fmt.Fprintf(os.Stderr, "virt-handler: %v\n", err)
		os.Exit(1)
	}
}

func run(o options) error {
	if o.node == "" {
		return fmt.Errorf("--node-name or $NODE_NAME is required")
	}
	accelerator, kvm, err := chooseAccelerator(o)
	if err != nil {
		return err
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	reconnect.Wrap(config)
	mgr, err := newHandler(config, o, accelerator, kvm)
	if err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}

// chooseAccelerator returns the accelerator and, for KVM, the device node that
// is shown in pods. That /dev/kvm exists proves nothing: there are hosts where
// it does and no ordinary kernel boots under it.
func chooseAccelerator(o options) (qemuargs.Accelerator, string, error) {
	log := ctrl.Log.WithName("accelerator")
	switch o.accelerator {
	case "tcg":
		return qemuargs.TCG, "", nil
	case "auto":
		log.Info("guests are emulated by TCG; where KVM is known to work, set --accelerator=kvm")
		return qemuargs.TCG, "", nil
	case "kvm":
		node, err := kvmDevice(filepath.Join(o.run, "dev"))
		return qemuargs.KVM, node, err
	}
	return "", "", fmt.Errorf("--accelerator=%q: must be kvm, tcg or auto", o.accelerator)
}
