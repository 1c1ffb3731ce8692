package certificates

import (
	"context"
	"crypto/x509"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// servings are virt-apis on one API server; the real one is in test/admission.
type servings struct {
	t      *testing.T
	client client.Client
	clock  *clocktesting.FakePassiveClock
}

func newServings(t *testing.T, objects ...client.Object) *servings {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), admissionregistrationv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	objects = append(objects, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: ServingCAName}})
	return &servings{t, fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(), clocktesting.NewFakePassiveClock(start)}
}

func (s *servings) add() *Serving {
	return &Serving{Client: s.client, Clock: s.clock, Log: logr.Discard(), DNSNames: []string{ServingName}}
}

func reconcileServing(t *testing.T, s *Serving) time.Duration {
	t.Helper()
	result, err := s.Reconcile(context.Background(), ctrl.Request{})
	if err != nil {
		t.Fatal(err)
	}
	return result.RequeueAfter
}

func webhooks() (*admissionregistrationv1.MutatingWebhookConfiguration, *admissionregistrationv1.ValidatingWebhookConfiguration) {
	meta := metav1.ObjectMeta{Name: WebhooksName}
	return &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: meta, Webhooks: make([]admissionregistrationv1.MutatingWebhook, 1)},
		&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: meta, Webhooks: make([]admissionregistrationv1.ValidatingWebhook, 2)}
}

// believed says whether every webhook's bundle proves what a virt-api serves.
func (s *servings) believed(from *Serving) {
	s.t.Helper()
	mutating, validating := webhooks()
	key := types.NamespacedName{Name: WebhooksName}
	if err := errors.Join(s.client.Get(context.Background(), key, mutating), s.client.Get(context.Background(), key, validating)); err != nil {
		s.t.Fatal(err)
	}
	served, err := from.GetCertificate(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, bundle := range [][]byte{mutating.Webhooks[0].ClientConfig.CABundle, validating.Webhooks[0].ClientConfig.CABundle, validating.Webhooks[1].ClientConfig.CABundle} {
		believed, err := parseAuthorities(bundle, nil)
		if err != nil {
			s.t.Fatal(err)
		}
		if _, err := served.Leaf.Verify(verifyServing(believed, s.clock.Now())); err != nil {
			s.t.Errorf("%s: %v", s.clock.Now(), err)
		}
	}
}

// TestServingRotates: over two months, whatever two virt-apis serve is believed.
func TestServingRotates(t *testing.T) {
	mutating, validating := webhooks()
	s := newServings(t, mutating, validating)
	one, two := s.add(), s.add()
	issuers := map[string]bool{}
	var served []string
	for end := start.Add(60 * 24 * time.Hour); s.clock.Now().Before(end); {
		wait := min(reconcileServing(t, one), reconcileServing(t, two))
		s.believed(one)
		s.believed(two)
		if err := errors.Join(one.Ready(nil), two.Ready(nil)); err != nil {
			t.Fatalf("%s: %v", s.clock.Now(), err)
		}
		if wait <= 0 || wait > reloadInterval {
			t.Fatalf("%s: the next look is in %s", s.clock.Now(), wait)
		}
		leaf := one.current.Load().Leaf
		issuers[leaf.Issuer.CommonName] = true
		if n := leaf.SerialNumber.String(); len(served) == 0 || served[len(served)-1] != n {
			served = append(served, n)
		}
		s.clock.SetTime(s.clock.Now().Add(wait))
	}
	if len(issuers) != 3 || len(served) < 80 || len(served) > 100 {
		t.Errorf("%d CAs, %d certificates; want 3, and three in two days", len(issuers), len(served))
	}
	if one.current.Load().Leaf.Equal(two.current.Load().Leaf) {
		t.Error("two virt-apis share a certificate")
	}
}

func TestServingReady(t *testing.T) {
	mutating, validating := webhooks()
	s := newServings(t, mutating, validating)
	serving := s.add()
	if _, err := serving.GetCertificate(nil); err == nil || serving.Ready(nil) == nil {
		t.Error("ready without a certificate")
	}
	reconcileServing(t, serving)
	if err := serving.Ready(nil); err != nil {
		t.Error(err)
	}
	s.clock.SetTime(start.Add(certificateLife))
	if serving.Ready(nil) == nil {
		t.Error("ready with a certificate that has expired")
	}
}

// TestServingWithoutWebhooks: somebody took them away; what else is served goes on.
func TestServingWithoutWebhooks(t *testing.T) {
	serving := newServings(t).add()
	reconcileServing(t, serving)
	if err := serving.Ready(nil); err != nil {
		t.Error(err)
	}
}

// TestServingSecretEmptied: a new CA is told of, and signs, at once.
func TestServingSecretEmptied(t *testing.T) {
	mutating, validating := webhooks()
	s := newServings(t, mutating, validating)
	serving := s.add()
	reconcileServing(t, serving)
	before := serving.current.Load().Leaf
	secret := &corev1.Secret{}
	if err := s.client.Get(context.Background(), servingCAKey(), secret); err != nil {
		t.Fatal(err)
	}
	secret.Data = nil
	if err := s.client.Update(context.Background(), secret); err != nil {
		t.Fatal(err)
	}
	reconcileServing(t, serving)
	s.believed(serving)
	if serving.current.Load().Leaf.Equal(before) {
		t.Error("the certificate of the CA that was taken away is still served")
	}
	secret.Data = map[string][]byte{caCertificates: []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")}
	if err := s.client.Get(context.Background(), servingCAKey(), &corev1.Secret{}); err != nil {
		t.Fatal(err)
	}
	secret.ResourceVersion = ""
	if err := s.client.Update(context.Background(), secret); err != nil {
		t.Fatal(err)
	}
	if _, err := serving.Reconcile(context.Background(), ctrl.Request{}); err == nil {
		t.Error("garbage is taken for a CA")
	}
	if err := serving.Ready(nil); err != nil {
		t.Errorf("garbage in the Secret ends what was served: %v", err)
	}
}

func verifyServing(believed authorities, now time.Time) x509.VerifyOptions {
	roots := x509.NewCertPool()
	for _, a := range believed {
		roots.AddCert(a.certificate)
	}
	return x509.VerifyOptions{Roots: roots, CurrentTime: now, DNSName: ServingName}
}
