package subresources

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"slices"
	"testing"
	"time"
)

var now = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)

// testCA certifies whatever is asked for.
type testCA struct {
	t           *testing.T
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newCA(t *testing.T) *testCA {
	t.Helper()
	ca := &testCA{t: t}
	ca.certificate, ca.key = ca.issue(&x509.Certificate{Subject: pkix.Name{CommonName: "CA"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return ca
}

func (ca *testCA) issue(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	ca.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		ca.t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(1)
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = now.Add(-time.Hour), now.Add(time.Hour)
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

func (ca *testCA) client(name string) *x509.Certificate {
	certificate, _ := ca.issue(&x509.Certificate{Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return certificate
}

func (ca *testCA) published(names string) map[string]string {
	return map[string]string{
		clientCAEntry: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.certificate.Raw})),
		namesEntry:    names, userEntry: `["X-Remote-User"]`, groupEntry: `["X-Remote-Group"]`, extraEntry: `["X-Remote-Extra-"]`,
	}
}

// TestAuthenticate: headers are believed from the front proxy and from nobody
// else, whatever other certificate is shown (CVE-2025-64432).
func TestAuthenticate(t *testing.T) {
	front, other := newCA(t), newCA(t)
	expired, _ := front.issue(&x509.Certificate{Subject: pkix.Name{CommonName: "front-proxy-client"}, NotBefore: now.Add(-2 * time.Hour), NotAfter: now.Add(-time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	server, _ := front.issue(&x509.Certificate{Subject: pkix.Name{CommonName: "front-proxy-client"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	named := http.Header{"X-Remote-User": {"ann"}, "X-Remote-Group": {"a", "system:masters"}, "X-Remote-Extra-Scopes": {"x", "y"}, "X-Remote-Extra-Acme.com%2fProject": {"p"}}
	for name, c := range map[string]struct {
		shown   *x509.Certificate
		allowed string
		header  http.Header
		ok      bool
	}{
		"the front proxy":      {front.client("front-proxy-client"), `["front-proxy-client"]`, named, true},
		"one of two":           {front.client("b"), `["a","b"]`, named, true},
		"no names are all":     {front.client("anybody"), `[]`, named, true},
		"no entry is all":      {front.client("anybody"), ``, named, true},
		"another name":         {front.client("kubelet"), `["front-proxy-client"]`, named, false},
		"another CA":           {other.client("front-proxy-client"), `["front-proxy-client"]`, named, false},
		"expired":              {expired, `["front-proxy-client"]`, named, false},
		"not for clients":      {server, `["front-proxy-client"]`, named, false},
		"no certificate":       {nil, `["front-proxy-client"]`, named, false},
		"no user":              {front.client("front-proxy-client"), `["front-proxy-client"]`, http.Header{"X-Remote-Group": {"system:masters"}}, false},
		"an empty user":        {front.client("front-proxy-client"), `["front-proxy-client"]`, http.Header{"X-Remote-User": {" "}}, false},
		"a user in other ways": {front.client("front-proxy-client"), `["front-proxy-client"]`, http.Header{"Impersonate-User": {"ann"}, "Authorization": {"Bearer x"}}, false},
	} {
		proxy, err := ParseFrontProxy(front.published(c.allowed))
		if err != nil {
			t.Fatal(err)
		}
		state := &tls.ConnectionState{}
		if c.shown != nil {
			state.PeerCertificates = []*x509.Certificate{c.shown}
		}
		who, err := proxy.authenticate(state, c.header, now)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, errUnauthenticated) {
			t.Errorf("%s: %+v, %v", name, who, err)
		}
		if c.ok && (who.name != "ann" || !slices.Equal(who.groups, []string{"a", "system:masters"}) || len(who.extra) != 2 ||
			!slices.Equal(who.extra["scopes"], []string{"x", "y"}) || !slices.Equal(who.extra["acme.com/project"], []string{"p"})) {
			t.Errorf("%s: %+v", name, who)
		}
	}
	proxy, err := ParseFrontProxy(front.published(``))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := proxy.authenticate(nil, named, now); err == nil {
		t.Error("a connection without TLS")
	}
}

func TestParseFrontProxy(t *testing.T) {
	good := newCA(t).published(`["a"]`)
	for entry, value := range map[string]string{clientCAEntry: "", namesEntry: "{", userEntry: "", groupEntry: "7"} {
		bad := map[string]string{}
		for k, v := range good {
			bad[k] = v
		}
		bad[entry] = value
		if _, err := ParseFrontProxy(bad); err == nil {
			t.Errorf("%s=%q was taken", entry, value)
		}
	}
}
