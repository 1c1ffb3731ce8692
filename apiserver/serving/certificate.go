// Package serving keeps virt-api's CA, and the certificate with which virt-api serves.
package serving

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/clock"

	"github.com/kubeqemu/kubeqemu/internal/authority"
)

// virt-api has a CA of its own, so that an attacker in virt-api cannot make virt-handlers'
// certificates. The Secret is part of the installation, empty at first, so that virt-api needs
// no right to create Secrets.
const (
	SecretName     = "virt-api-ca"
	caCertificates = "ca.crt"
	caKeys         = "ca.key"
	// ServiceName is the name that the API server looks for in the certificate
	// of a Service's webhook.
	ServiceName = "virt-api.kubevirt.svc"
	// WebhooksName is the name of both webhook configurations.
	WebhooksName = "virt-api"
)

const (
	// longestWait is the longest time between two checks of the certificate. A timer does not
	// notice that the clock was set, or that the machine slept. A certificate made while the
	// clock was ahead is refused until the next check.
	longestWait = time.Minute
	// retryDelay is the wait after a failed step.
	retryDelay = 2 * time.Second
)

// Object is one object in the API server. Get returns a copy, or nil if there is no such
// object. Update fails if the object has changed since it was read.
type Object[P any] interface {
	Get() P
	Update(ctx context.Context, object P) error
}

// Objects are several objects in the API server. All returns copies.
type Objects[T any] interface {
	All() []T
	Update(ctx context.Context, object *T) error
}

// Certificate keeps virt-api's serving certificate. It writes the CA into the webhook
// configurations and the APIServices, for the API server. Every replica has a certificate of its
// own, whose key is in memory only; the replicas share the CA. The API server learns of a new
// CA an hour before that CA signs, so that it trusts every certificate that is served. No
// leader is needed: every write holds the version that it was computed from.
//
// open-policy-agent/cert-controller has the same purpose. It replaces CA and certificate in one
// step, while the API server and the other replicas still have the old ones.
type Certificate struct {
	CA         Object[*corev1.Secret]
	Mutating   Object[*admissionregistrationv1.MutatingWebhookConfiguration]
	Validating Object[*admissionregistrationv1.ValidatingWebhookConfiguration]
	// APIServices are APIServices of the cluster, and ServedNames the names of virt-api's own. The
	// API server holds each to the group and version in its spec.
	APIServices Objects[apiregistrationv1.APIService]
	ServedNames []string
	// Hidden are the webhooks of Mutating and Validating whose path has a secret, by name.
	Hidden map[string]Hidden
	// Published tells virt-handlers the CA of virt-api's client certificates.
	Published Object[*corev1.ConfigMap]
	Clock     clock.PassiveClock
	Log       logr.Logger
	// DNSNames of the certificate.
	DNSNames []string
	// Changed is sent to when one of the objects changed.
	Changed <-chan struct{}

	current  atomic.Pointer[tls.Certificate]
	client   atomic.Pointer[tls.Certificate]
	injected atomic.Bool
}

// GetCertificate returns the serving certificate; it is for a tls.Config.
func (c *Certificate) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if current := c.current.Load(); current != nil {
		return current, nil
	}
	return nil, errors.New("there is no serving certificate yet")
}

// GetClientCertificate returns the client certificate; it is for a tls.Config that dials
// virt-handlers.
func (c *Certificate) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	if current := c.client.Load(); current != nil {
		return current, nil
	}
	return nil, errors.New("there is no client certificate yet")
}

// Ready returns an error unless there is a valid certificate, and the API server was told its
// CA.
func (c *Certificate) Ready() error {
	current := c.current.Load()
	switch {
	case current == nil || !c.injected.Load():
		return errors.New("there is no serving certificate yet that the API server believes")
	case !c.Clock.Now().Before(current.Leaf.NotAfter):
		return errors.New("the serving certificate has expired")
	case c.Clock.Now().Before(current.Leaf.NotBefore):
		return fmt.Errorf("the serving certificate is not valid before %s; the clock was ahead when it was made", current.Leaf.NotBefore.Format(time.RFC3339))
	}
	return nil
}

// Run keeps the certificate until ctx ends.
func (c *Certificate) Run(ctx context.Context) {
	for ctx.Err() == nil {
		wait, err := c.step(ctx)
		if err != nil {
			wait = retryDelay
			// A conflict: another virt-api did it, or the watch is behind.
			if !apierrors.IsConflict(err) && ctx.Err() == nil {
				c.Log.Error(err, "keep serving certificate", "retryIn", wait.String())
			}
		}
		timer := time.NewTimer(min(wait, longestWait))
		select {
		case <-ctx.Done():
		case <-c.Changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// step rotates the CA if it is time, tells the API server of the CA, and only then renews the
// certificate. It returns how long there is nothing more to do.
func (c *Certificate) step(ctx context.Context) (time.Duration, error) {
	cas, err := c.authorities(ctx)
	if err != nil {
		return 0, err
	}
	if err := c.inject(ctx, cas); err != nil {
		return 0, fmt.Errorf("tell the API server of virt-api's CA: %w", err)
	}
	c.injected.Store(true)
	now := c.Clock.Now()
	if err := c.renew(cas, now); err != nil {
		return 0, err
	}
	// An APIService that cannot be written is its groups' fault alone: the webhooks work.
	if err := c.injectServices(ctx, cas.Bundle()); err != nil {
		return 0, fmt.Errorf("tell the API server of virt-api's CA: %w", err)
	}
	next := authority.RenewAt(c.current.Load().Leaf)
	if change := cas.NextChange(now); change.Before(next) {
		next = change
	}
	return max(next.Sub(now), time.Second), nil
}

// authorities reads the CA, and rotates it if it is time.
func (c *Certificate) authorities(ctx context.Context) (authority.CAs, error) {
	secret := c.CA.Get()
	if secret == nil {
		return nil, fmt.Errorf("read virt-api's CA: there is no Secret %s", SecretName)
	}
	held, err := authority.Parse(secret.Data[caCertificates], secret.Data[caKeys])
	if err != nil {
		return nil, fmt.Errorf("read virt-api's CA from Secret %s: %w", SecretName, err)
	}
	cas, changed, err := held.Rotate(c.Clock.Now(), authority.New("virt-api"))
	if err != nil || !changed {
		return cas, err
	}
	keys, err := cas.Keys()
	if err != nil {
		return nil, err
	}
	secret.Data = map[string][]byte{caCertificates: cas.Bundle(), caKeys: keys}
	if err := c.CA.Update(ctx, secret); err != nil {
		return nil, fmt.Errorf("save virt-api's CA: %w", err)
	}
	c.Log.Info("made a new CA, or retired an old one", "authorities", len(cas), "newest", cas[0].Certificate.Subject.CommonName)
	return cas, nil
}

// inject writes the CAs and secret paths into the webhook configurations, if they hold others. It skips a
// configuration that is not installed.
func (c *Certificate) inject(ctx context.Context, cas authority.CAs) error {
	bundle := cas.Bundle()
	if config := c.Mutating.Get(); config != nil {
		changed := false
		for i := range config.Webhooks {
			written, err := c.lead(config.Webhooks[i].Name, &config.Webhooks[i].ClientConfig, cas)
			if err != nil {
				return err
			}
			changed = written || changed
		}
		if changed {
			if err := c.Mutating.Update(ctx, config); err != nil {
				return err
			}
			c.Log.Info("told the API server of the CA", "in", "MutatingWebhookConfiguration")
		}
	}
	if config := c.Validating.Get(); config != nil {
		changed := false
		for i := range config.Webhooks {
			written, err := c.lead(config.Webhooks[i].Name, &config.Webhooks[i].ClientConfig, cas)
			if err != nil {
				return err
			}
			changed = written || changed
		}
		if changed {
			if err := c.Validating.Update(ctx, config); err != nil {
				return err
			}
			c.Log.Info("told the API server of the CA", "in", "ValidatingWebhookConfiguration")
		}
	}
	return c.publish(ctx, bundle)
}

// lead writes the CAs, and the secret path if the webhook has one, into the configuration of a webhook. It returns whether that changed
// something.
func (c *Certificate) lead(webhook string, config *admissionregistrationv1.WebhookClientConfig, cas authority.CAs) (bool, error) {
	changed := write(config, cas.Bundle())
	hidden, ok := c.Hidden[webhook]
	if !ok {
		return changed, nil
	}
	led, err := hidden.lead(config, cas, c.Clock.Now())
	return led || changed, err
}

// injectServices writes the CAs into virt-api's APIServices, if they hold others.
func (c *Certificate) injectServices(ctx context.Context, bundle []byte) error {
	var failed []error
	for _, service := range c.APIServices.All() {
		if !slices.Contains(c.ServedNames, service.Name) || !leadsHere(&service) || authority.SameBundle(service.Spec.CABundle, bundle) {
			continue
		}
		service.Spec.CABundle = bundle
		if err := c.APIServices.Update(ctx, &service); err != nil {
			failed = append(failed, err)
			continue
		}
		c.Log.Info("told the API server of the CA", "in", "APIService "+service.Name)
	}
	return errors.Join(failed...)
}

// leadsHere says whether the API server asks virt-api for an APIService. CDI's operator makes one of
// virt-api's its own.
func leadsHere(service *apiregistrationv1.APIService) bool {
	to := service.Spec.Service
	return to != nil && to.Name+"."+to.Namespace+".svc" == ServiceName
}

// publish tells virt-handlers the CA, because it signs virt-api's client certificate too.
func (c *Certificate) publish(ctx context.Context, bundle []byte) error {
	published := c.Published.Get()
	if published == nil || authority.SameBundle([]byte(published.Data[authority.BundleEntry]), bundle) {
		return nil
	}
	published.Data = map[string]string{authority.BundleEntry: string(bundle)}
	if err := c.Published.Update(ctx, published); err != nil {
		return err
	}
	c.Log.Info("told virt-handlers of the CA")
	return nil
}

// write sets the bundle, and returns whether that changed something.
func write(config *admissionregistrationv1.WebhookClientConfig, bundle []byte) bool {
	if authority.SameBundle(config.CABundle, bundle) {
		return false
	}
	config.CABundle = bundle
	return true
}

// renew makes new certificates if there are none, or it is time, or another CA
// signs now: one to serve with, and one to dial virt-handlers with.
func (c *Certificate) renew(cas authority.CAs, now time.Time) error {
	index := cas.Signing(now)
	if index < 0 {
		return errors.New("make certificates: there is no CA that is valid now")
	}
	signer := cas[index].Certificate
	if current := c.current.Load(); current != nil && authority.ValidAt(current.Leaf, now) && now.Before(authority.RenewAt(current.Leaf)) &&
		slices.Equal(current.Leaf.DNSNames, c.DNSNames) && current.Leaf.CheckSignatureFrom(signer) == nil {
		return nil
	}
	client, err := cas.Certify(&x509.Certificate{
		Subject:     pkix.Name{CommonName: authority.APIName, Organization: []string{string(authority.APIClient)}},
		ExtKeyUsage: []x509.ExtKeyUsage{authority.APIClient.ExtUsage()},
	}, now)
	if err != nil {
		return err
	}
	serving, err := cas.Certify(&x509.Certificate{
		Subject: pkix.Name{CommonName: authority.APIName}, DNSNames: c.DNSNames, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, now)
	if err != nil {
		return err
	}
	c.client.Store(client)
	c.current.Store(serving)
	leaf := serving.Leaf
	c.Log.Info("made certificates", "issuer", leaf.Issuer.CommonName, "notAfter", leaf.NotAfter, "renewAt", authority.RenewAt(leaf))
	return nil
}
