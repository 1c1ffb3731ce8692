package main

import (
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/certificates"
	"github.com/kubeqemu/kubeqemu/controllers/vmi"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// newManager makes the manager with all reconcilers. There is no leader
// election: pod names are deterministic and every write holds the resource
// version it was computed from, so that two of them would do no harm.
func newManager(config *rest.Config, o options) (ctrl.Manager, error) {
	s, err := newScheme()
	if err != nil {
		return nil, fmt.Errorf("make scheme: %w", err)
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 s,
		HealthProbeBindAddress: o.probes,
		Metrics:                server.Options{BindAddress: o.metrics},
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			// Only launcher pods, and virt-handler's certificate requests, so that memory does not grow with the cluster.
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Pod{}: {Label: labels.SelectorFromSet(labels.Set{v1.AppLabel: "virt-launcher"})},
				&certificatesv1.CertificateSigningRequest{}: {Field: fields.OneTermEqualSelector("spec.signerName", certificates.SignerName)},
			},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make manager: %w", err)
	}
	reconciler := &vmi.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: clock.RealClock{},
		Events: mgr.GetEventRecorder("virt-controller"),
		Config: vmi.PodConfig{LauncherImage: o.launcherImage, Emulation: o.accelerator != string(qemuargs.KVM)},
	}
	if err := reconciler.Setup(mgr); err != nil {
		return nil, fmt.Errorf("set up VMI controller: %w", err)
	}
	signer := &certificates.Signer{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: clock.RealClock{},
		Log: mgr.GetLogger().WithName("certificates")}
	if err := signer.Setup(mgr); err != nil {
		return nil, fmt.Errorf("set up certificate signer: %w", err)
	}
	for _, add := range []func(string, healthz.Checker) error{mgr.AddHealthzCheck, mgr.AddReadyzCheck} {
		if err := add("ping", healthz.Ping); err != nil {
			return nil, err
		}
	}
	return mgr, nil
}
