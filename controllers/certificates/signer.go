package certificates

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/internal/authority"
)

// The CA is a Secret that only virt-controller may read, and a ConfigMap for all components
// that check certificates. The installation creates both, empty, so that virt-controller needs
// no right to create any.
const (
	CAName      = authority.HandlerCA
	BundleEntry = authority.BundleEntry
	// In the Secret: the same certificates, and the keys of those that sign.
	caCertificates = "ca.crt"
	caKeys         = "ca.key"
)

// Signer approves and signs virt-handler's requests, and keeps the CA. It needs no leader:
// every write carries the version that it was computed from, so that the API server refuses
// the later of two.
type Signer struct {
	Client client.Client
	// Live reads past the cache, which holds neither Secrets nor ConfigMaps.
	Live  client.Reader
	Clock clock.Clock
	Log   logr.Logger

	mu  sync.Mutex
	cas authority.CAs

	own ownCertificate
}

// Setup registers the signer with a manager. The manager's cache should hold only the
// CertificateSigningRequests of SignerName.
func (s *Signer) Setup(mgr ctrl.Manager) error {
	if err := mgr.Add(s); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).Named("certificates").For(&certificatesv1.CertificateSigningRequest{}).
		WithOptions(kit.Options(1)).Complete(s)
}

// Reconcile approves, signs or denies one request.
func (s *Signer) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	csr := &certificatesv1.CertificateSigningRequest{}
	if err := s.Client.Get(ctx, request.NamespacedName, csr); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if csr.Spec.SignerName != SignerName || len(csr.Status.Certificate) > 0 || decided(csr, certificatesv1.CertificateDenied) || decided(csr, certificatesv1.CertificateFailed) {
		return ctrl.Result{}, nil
	}
	csr = csr.DeepCopy()
	w, err := check(csr)
	approved := decided(csr, certificatesv1.CertificateApproved)
	var refused *refusal
	switch {
	case errors.As(err, &refused) && approved:
		// Somebody else approved the request. But only we sign, and we refuse.
		decide(csr, certificatesv1.CertificateFailed, refused.reason, refused.message)
		err = s.Client.Status().Update(ctx, csr)
	case errors.As(err, &refused):
		s.Log.Info("deny certificate request", "request", csr.Name, "user", csr.Spec.Username, "reason", refused.Error())
		decide(csr, certificatesv1.CertificateDenied, refused.reason, refused.message)
		err = s.Client.SubResource("approval").Update(ctx, csr)
	case !approved:
		decide(csr, certificatesv1.CertificateApproved, "VirtHandler", fmt.Sprintf("virt-handler's token is bound to a pod of node %s", w.node))
		err = s.Client.SubResource("approval").Update(ctx, csr) // its event brings us back
	default:
		err = s.issue(ctx, csr, w)
	}
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

func decided(csr *certificatesv1.CertificateSigningRequest, decision certificatesv1.RequestConditionType) bool {
	for _, c := range csr.Status.Conditions {
		if c.Type == decision {
			return true
		}
	}
	return false
}

func decide(csr *certificatesv1.CertificateSigningRequest, decision certificatesv1.RequestConditionType, reason, message string) {
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: decision, Status: corev1.ConditionTrue, Reason: reason, Message: message})
}

// component is the component whose certificates the CA signs.
const component = "virt-handler"

// sign makes the certificate, in PEM, of a checked request. It takes only the key from the
// request. A life of 0 is the longest that is permitted.
func sign(as authority.CAs, w wanted, life time.Duration, now time.Time) ([]byte, error) {
	der, err := as.Issue(&x509.Certificate{
		Subject: subject(w.role, w.node), DNSNames: dnsNames(w.role, w.node), ExtKeyUsage: []x509.ExtKeyUsage{w.role.ExtUsage()},
	}, w.key, life, now)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: authority.CertificateBlock, Bytes: der}), nil
}

// issue signs an approved request.
func (s *Signer) issue(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, w wanted) error {
	var life time.Duration
	if seconds := csr.Spec.ExpirationSeconds; seconds != nil {
		life = time.Duration(*seconds) * time.Second
	}
	cas, err := s.authorities(ctx)
	if err != nil {
		return err
	}
	if csr.Status.Certificate, err = sign(cas, w, life, s.Clock.Now()); err != nil {
		return err
	}
	if err := s.Client.Status().Update(ctx, csr); err != nil {
		return fmt.Errorf("hand out certificate: %w", err)
	}
	s.Log.Info("signed certificate", "request", csr.Name, "role", w.role, "node", w.node)
	return nil
}

// authorities returns the CA, and first rotates it if that is due.
func (s *Signer) authorities(ctx context.Context) (authority.CAs, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.Clock.Now(); len(s.cas) > 0 && now.Before(s.cas.NextChange(now)) {
		return s.cas, nil
	}
	return s.load(ctx)
}

// load reads the CA again, rotates it if that is due, and publishes it.
func (s *Signer) load(ctx context.Context) (authority.CAs, error) {
	secret := &corev1.Secret{}
	if err := s.Live.Get(ctx, caKey(), secret); err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	held, err := authority.Parse(secret.Data[caCertificates], secret.Data[caKeys])
	if err != nil {
		return nil, fmt.Errorf("read CA from Secret %s: %w", caKey(), err)
	}
	cas, changed, err := held.Rotate(s.Clock.Now(), authority.New(component))
	if err != nil {
		return nil, err
	}
	if changed {
		if err := s.save(ctx, secret, cas); err != nil {
			return nil, err
		}
		s.Log.Info("made a new CA, or retired an old one", "authorities", len(cas), "newest", cas[0].Certificate.Subject.CommonName)
	}
	if err := s.publish(ctx, cas.Bundle()); err != nil {
		return nil, err
	}
	s.cas = cas
	return cas, nil
}

// caKey names both the Secret and the ConfigMap.
func caKey() types.NamespacedName {
	return types.NamespacedName{Namespace: v1.KubeVirtNamespace, Name: CAName}
}

// save writes the Secret at the version that was read. If two virt-controllers rotate at once,
// the second gets a conflict, and reads again.
func (s *Signer) save(ctx context.Context, secret *corev1.Secret, cas authority.CAs) error {
	keys, err := cas.Keys()
	if err != nil {
		return err
	}
	secret.Data = map[string][]byte{caCertificates: cas.Bundle(), caKeys: keys}
	if err := s.Client.Update(ctx, secret); err != nil {
		return fmt.Errorf("save CA: %w", err)
	}
	return nil
}

// publish writes the bundle into the ConfigMap, if the ConfigMap has another.
func (s *Signer) publish(ctx context.Context, bundle []byte) error {
	published := &corev1.ConfigMap{}
	if err := s.Live.Get(ctx, caKey(), published); err != nil {
		return fmt.Errorf("read published CA: %w", err)
	}
	if authority.SameBundle([]byte(published.Data[BundleEntry]), bundle) {
		return nil
	}
	published.Data = map[string]string{BundleEntry: string(bundle)}
	if err := s.Client.Update(ctx, published); err != nil {
		return fmt.Errorf("publish CA: %w", err)
	}
	return nil
}

const (
	// reloadInterval is how often the CA is read again. Another virt-controller may have
	// rotated it, an administrator may have emptied the Secret to get a new one, or the clock
	// may have been set, which no timer notices.
	reloadInterval = time.Minute
	// reloadRetry is the wait after a failed reload.
	reloadRetry = 10 * time.Second
)

// Start keeps the CA until ctx ends. It is a manager.Runnable.
func (s *Signer) Start(ctx context.Context) error {
	for {
		s.mu.Lock()
		cas, err := s.load(ctx)
		s.mu.Unlock()
		wait := reloadRetry
		switch now := s.Clock.Now(); {
		case err == nil:
			wait = min(reloadInterval, max(cas.NextChange(now).Sub(now), time.Second))
		case ctx.Err() == nil:
			s.Log.Error(err, "keep CA")
		}
		timer := s.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
	}
}
