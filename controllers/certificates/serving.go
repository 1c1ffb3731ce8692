package certificates

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kubeqemu/kubeqemu/controllers/reconnect"
)

// The CA of virt-api's serving certificates is not that of virt-handlers': who
// takes virt-api cannot make the latter's. The Secret is part of the
// installation, empty at first.
const (
	ServingCAName = "virt-api-ca"
	// ServingName is the name that the API server looks for in the certificate
	// of a Service's webhook.
	ServingName = "virt-api." + Namespace + ".svc"
	// WebhooksName is the name of both webhook configurations.
	WebhooksName = "virt-api"
)

// Serving keeps virt-api's serving certificate, and tells the API server which
// CA it is from, in the webhook configurations. Every virt-api has a
// certificate of its own, whose key is in its memory only; they share the CA.
// Of a new CA the API server hears an hour before it signs, so that at no time
// a certificate is served that is not believed. It needs no leader: every write
// holds the version that it was computed from.
//
// open-policy-agent/cert-controller, which does the like, replaces CA and
// certificate in one step, while the API server and the other replicas still
// have the old ones.
type Serving struct {
	// Client reads from a cache that holds the Secret and the webhook
	// configurations, and nothing else of their kinds.
	Client client.Client
	Clock  clock.PassiveClock
	Log    logr.Logger
	// DNSNames of the certificate.
	DNSNames []string

	current  atomic.Pointer[tls.Certificate]
	injected atomic.Bool
}

// ServingCache is what Client needs of its cache: the very objects that
// virt-api's role lets it read.
func ServingCache() cache.Options {
	webhooks := cache.ByObject{Field: fields.OneTermEqualSelector("metadata.name", WebhooksName)}
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}: {Namespaces: map[string]cache.Config{Namespace: {}},
				Field: fields.OneTermEqualSelector("metadata.name", ServingCAName)},
			&admissionregistrationv1.MutatingWebhookConfiguration{}:   webhooks,
			&admissionregistrationv1.ValidatingWebhookConfiguration{}: webhooks,
		},
	}
}

// Setup registers it with a manager, under a name.
func (s *Serving) Setup(mgr ctrl.Manager, name string) error {
	// Whatever changes, all is looked at: there is one thing to be done.
	one := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: servingCAKey()}}
	})
	return ctrl.NewControllerManagedBy(mgr).Named(name).
		Watches(&corev1.Secret{}, one).
		Watches(&admissionregistrationv1.MutatingWebhookConfiguration{}, one).
		Watches(&admissionregistrationv1.ValidatingWebhookConfiguration{}, one).
		WithOptions(controller.Options{RateLimiter: reconnect.RateLimiter()}).
		Complete(s)
}

func servingCAKey() types.NamespacedName {
	return types.NamespacedName{Namespace: Namespace, Name: ServingCAName}
}

// GetCertificate is for a tls.Config.
func (s *Serving) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := s.current.Load(); c != nil {
		return c, nil
	}
	return nil, errors.New("there is no serving certificate yet")
}

// Ready is a health check: whether there is a certificate that the API server
// was told to believe.
func (s *Serving) Ready(*http.Request) error {
	if c := s.current.Load(); c == nil || !s.injected.Load() {
		return errors.New("there is no serving certificate yet that the API server believes")
	} else if !s.Clock.Now().Before(c.Leaf.NotAfter) {
		return errors.New("the serving certificate has expired")
	}
	return nil
}

// Reconcile rotates the CA if it is time, tells the API server of it, and only
// then renews the certificate.
func (s *Serving) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	cas, err := s.authorities(ctx)
	if err == nil {
		err = s.inject(ctx, cas.bundle())
	}
	if apierrors.IsConflict(err) {
		// Another virt-api did it, or the cache is behind.
		return ctrl.Result{RequeueAfter: time.Second}, nil
	} else if err != nil {
		return ctrl.Result{}, err
	}
	s.injected.Store(true)
	now := s.Clock.Now()
	if err := s.renew(cas, now); err != nil {
		return ctrl.Result{}, err
	}
	next := renewAt(s.current.Load().Leaf)
	if change := cas.nextChange(now); change.Before(next) {
		next = change
	}
	// Not in one go: a timer does not see that the clock was set, or that the
	// machine was asleep.
	return ctrl.Result{RequeueAfter: min(reloadInterval, max(next.Sub(now), time.Second))}, nil
}

// authorities reads the CA, and rotates it if it is time.
func (s *Serving) authorities(ctx context.Context) (authorities, error) {
	secret := &corev1.Secret{}
	if err := s.Client.Get(ctx, servingCAKey(), secret); err != nil {
		return nil, fmt.Errorf("read virt-api's CA: %w", err)
	}
	held, err := parseAuthorities(secret.Data[caCertificates], secret.Data[caKeys])
	if err != nil {
		return nil, fmt.Errorf("read virt-api's CA from Secret %s: %w", servingCAKey(), err)
	}
	cas, changed, err := held.rotate(s.Clock.Now(), func(now time.Time) (authority, error) { return makeAuthority("virt-api", now) })
	if err != nil || !changed {
		return cas, err
	}
	keys, err := cas.keys()
	if err != nil {
		return nil, err
	}
	secret.Data = map[string][]byte{caCertificates: cas.bundle(), caKeys: keys}
	if err := s.Client.Update(ctx, secret); err != nil {
		return nil, fmt.Errorf("save virt-api's CA: %w", err)
	}
	s.Log.Info("made a new CA, or retired an old one", "authorities", len(cas), "newest", cas[0].certificate.Subject.CommonName)
	return cas, nil
}

// inject writes the bundle into the webhook configurations, where it is not
// there. One that is not installed needs none.
func (s *Serving) inject(ctx context.Context, bundle []byte) error {
	mutating, validating := &admissionregistrationv1.MutatingWebhookConfiguration{}, &admissionregistrationv1.ValidatingWebhookConfiguration{}
	for object, configs := range map[client.Object]func() []*admissionregistrationv1.WebhookClientConfig{
		mutating: func() (all []*admissionregistrationv1.WebhookClientConfig) {
			for i := range mutating.Webhooks {
				all = append(all, &mutating.Webhooks[i].ClientConfig)
			}
			return all
		},
		validating: func() (all []*admissionregistrationv1.WebhookClientConfig) {
			for i := range validating.Webhooks {
				all = append(all, &validating.Webhooks[i].ClientConfig)
			}
			return all
		},
	} {
		err := s.Client.Get(ctx, types.NamespacedName{Name: WebhooksName}, object)
		if apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return fmt.Errorf("read webhooks: %w", err)
		}
		changed := false
		for _, config := range configs() {
			if !same(config.CABundle, bundle) {
				config.CABundle, changed = bundle, true
			}
		}
		if !changed {
			continue
		}
		if err := s.Client.Update(ctx, object); err != nil {
			return fmt.Errorf("tell the API server of virt-api's CA: %w", err)
		}
		s.Log.Info("told the API server of the CA", "in", fmt.Sprintf("%T", object))
	}
	return nil
}

// renew makes a new certificate if there is none, or it is time, or another CA
// signs now.
func (s *Serving) renew(cas authorities, now time.Time) error {
	if c := s.current.Load(); c != nil && now.Before(renewAt(c.Leaf)) && slices.Equal(c.Leaf.DNSNames, s.DNSNames) &&
		c.Leaf.CheckSignatureFrom(cas[cas.signing(now)].certificate) == nil {
		return nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	der, err := cas.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "virt-api"}, DNSNames: s.DNSNames, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, &key.PublicKey, certificateLife, now)
	if err != nil {
		return err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("read certificate: %w", err)
	}
	s.current.Store(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf})
	s.Log.Info("made a serving certificate", "issuer", leaf.Issuer.CommonName, "notAfter", leaf.NotAfter, "renewAt", renewAt(leaf))
	return nil
}
