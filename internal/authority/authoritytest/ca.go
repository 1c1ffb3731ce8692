// Package authoritytest has CAs that issue whatever certificate a test asks for.
package authoritytest

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/authority"
)

// CA is a CA of a test's cluster.
type CA struct {
	authority.CAs
	t testing.TB
}

// New makes the CA of a component.
func New(t testing.TB, component string) *CA {
	t.Helper()
	ca, err := authority.New(component)(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &CA{authority.CAs{ca}, t}
}

// Certify issues a certificate and its key. The role may be empty.
func (c *CA) Certify(role authority.Role, name string, usage x509.ExtKeyUsage, dns ...string) *tls.Certificate {
	c.t.Helper()
	names := &x509.Certificate{Subject: pkix.Name{CommonName: name}, DNSNames: dns, ExtKeyUsage: []x509.ExtKeyUsage{usage}}
	if role != "" {
		names.Subject.Organization = []string{string(role)}
	}
	certificate, err := c.CAs.Certify(names, time.Now())
	if err != nil {
		c.t.Fatal(err)
	}
	return certificate
}

// Pool has the CA's certificates.
func (c *CA) Pool() (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(c.Bundle())
	return pool, nil
}
