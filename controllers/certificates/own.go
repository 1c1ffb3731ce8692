package certificates

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"slices"
	"sync"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/authority"
)

// ownCertificate is virt-controller's certificate, which it signs itself, without a request.
type ownCertificate struct {
	mu   sync.Mutex
	held *tls.Certificate
}

// GetCertificate is for the tls.Config of virt-controller's metrics. The key exists only in
// memory.
func (s *Signer) GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.own.mu.Lock()
	defer s.own.mu.Unlock()
	cas, err := s.authorities(hello.Context())
	if err != nil {
		return nil, err
	}
	if now := s.Clock.Now(); !s.own.good(cas, now) {
		s.own.held, err = issueOwn(cas, now)
	}
	return s.own.held, err
}

// good says whether the certificate is valid, not yet due for renewal, and signed by a CA that
// is still trusted.
func (o *ownCertificate) good(cas authority.CAs, now time.Time) bool {
	return o.held != nil && authority.ValidAt(o.held.Leaf, now) && now.Before(authority.RenewAt(o.held.Leaf)) && slices.ContainsFunc(cas, func(a authority.CA) bool {
		return authority.ValidAt(a.Certificate, now) && o.held.Leaf.CheckSignatureFrom(a.Certificate) == nil
	})
}

func issueOwn(cas authority.CAs, now time.Time) (*tls.Certificate, error) {
	const role = authority.ControllerServer
	return cas.Certify(&x509.Certificate{Subject: pkix.Name{Organization: []string{string(role)}, CommonName: authority.ControllerName},
		DNSNames: []string{authority.MetricsName}, ExtKeyUsage: []x509.ExtKeyUsage{role.ExtUsage()}}, now)
}
