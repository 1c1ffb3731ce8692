// Package callerstest has an API server's front proxy for tests: its CA, and what it publishes.
package callerstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// Now is when the certificates are valid.
var Now = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)

// CA certifies whatever is asked for.
type CA struct {
	t           *testing.T
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewCA makes a CA.
func NewCA(t *testing.T) *CA {
	t.Helper()
	ca := &CA{t: t}
	ca.certificate, ca.key = ca.Issue(&x509.Certificate{Subject: pkix.Name{CommonName: "CA"}, IsCA: true, NotBefore: time.Unix(0, 0), NotAfter: Now.AddDate(1, 0, 0), BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return ca
}

// Issue certifies a new key; the template without NotAfter is valid Now.
func (ca *CA) Issue(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	ca.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		ca.t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(1)
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = Now.Add(-time.Hour), Now.Add(time.Hour)
	}
	parent, signer := ca.certificate, ca.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		ca.t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		ca.t.Fatal(err)
	}
	return certificate, key
}

// Client returns a client certificate.
func (ca *CA) Client(name string) *x509.Certificate {
	certificate, _ := ca.Issue(&x509.Certificate{Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return certificate
}

// Published is the ConfigMap in which the API server says how it proves to be itself. names is
// the JSON list of the names that it may have.
func (ca *CA) Published(names string) map[string]string {
	return map[string]string{
		"requestheader-client-ca-file": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.certificate.Raw})),
		"requestheader-allowed-names":  names, "requestheader-username-headers": `["X-Remote-User"]`,
		"requestheader-group-headers": `["X-Remote-Group"]`, "requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
	}
}

// Serve serves a handler with TLS until the test ends. It returns the address, and the
// configuration of a client that shows the front proxy's certificate.
func (ca *CA) Serve(handler http.Handler) (url string, proxy *tls.Config) {
	ca.t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	server.StartTLS()
	ca.t.Cleanup(server.Close)
	certificate, key := ca.Issue(&x509.Certificate{Subject: pkix.Name{CommonName: "front-proxy-client"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return server.URL, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{{Certificate: [][]byte{certificate.Raw}, PrivateKey: key}}}
}
