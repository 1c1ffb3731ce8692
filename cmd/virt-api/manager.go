package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/apiserver/admission"
	"github.com/kubeqemu/kubeqemu/controllers/certificates"
	"github.com/kubeqemu/kubeqemu/controllers/kubevirt"
)

// newManager makes the manager with the server and its certificate. There is no
// leader: each virt-api answers.
func newManager(config *rest.Config, o options) (ctrl.Manager, error) {
	s, err := newScheme()
	if err != nil {
		return nil, fmt.Errorf("make scheme: %w", err)
	}
	serving := &certificates.Serving{Clock: clock.RealClock{}, DNSNames: []string{certificates.ServingName}}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 s,
		HealthProbeBindAddress: o.probes,
		Metrics:                server.Options{BindAddress: o.metrics},
		Cache:                  cacheOptions(),
		WebhookServer: webhook.NewServer(webhook.Options{Port: o.port, TLSOpts: []func(*tls.Config){func(c *tls.Config) {
			c.MinVersion, c.GetCertificate = tls.VersionTLS13, serving.GetCertificate
		}}}),
	})
	if err != nil {
		return nil, fmt.Errorf("make manager: %w", err)
	}
	serving.Client, serving.Log = mgr.GetClient(), mgr.GetLogger().WithName("certificates")
	if err := serving.Setup(mgr, "serving-certificate"); err != nil {
		return nil, fmt.Errorf("set up serving certificate: %w", err)
	}
	// Or else the first question would wait for it.
	if _, err := mgr.GetCache().GetInformer(context.Background(), &v1.KubeVirt{}, cache.BlockUntilSynced(false)); err != nil {
		return nil, fmt.Errorf("watch KubeVirts: %w", err)
	}
	admission.Register(mgr.GetWebhookServer(), facts(mgr.GetClient()))
	return mgr, errors.Join(
		mgr.AddHealthzCheck("ping", healthz.Ping),
		mgr.AddReadyzCheck("certificate", serving.Ready),
		mgr.AddReadyzCheck("server", mgr.GetWebhookServer().StartedChecker()))
}

// newScheme has the kinds that are read or written, and no more, for memory.
func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(corev1.AddToScheme(s), admissionregistrationv1.AddToScheme(s), v1.AddToScheme(s))
}

// cacheOptions keep what is watched to the very objects that are needed, which
// is also all that the role grants.
func cacheOptions() cache.Options {
	options := certificates.ServingCache()
	options.ByObject[&v1.KubeVirt{}] = cache.ByObject{Namespaces: map[string]cache.Config{kubevirt.Namespace: {}}}
	return options
}

// facts are read from the cache.
func facts(reader client.Reader) func(context.Context) (admission.Facts, error) {
	return func(ctx context.Context) (admission.Facts, error) {
		var list v1.KubeVirtList
		if err := reader.List(ctx, &list, client.InNamespace(kubevirt.Namespace)); err != nil {
			return admission.Facts{}, fmt.Errorf("list KubeVirts: %w", err)
		}
		return admission.Facts{Cluster: kubevirt.ConfigurationOf(list.Items), KubeVirts: list.Items}, nil
	}
}
