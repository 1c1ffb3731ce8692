package certificates

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/authority"
)

// TestControllersCertificateIsForScrapers: virt-controller's is for scrapers, and nobody else takes it.
func TestControllersCertificateIsForScrapers(t *testing.T) {
	as := rotated(t, nil, start)
	held, err := issueOwn(as, start)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(as.Bundle())
	if _, err := held.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: start, DNSName: authority.MetricsName}); err != nil {
		t.Errorf("a scraper does not take it: %v", err)
	}
	for _, role := range []Role{Client, Server, authority.APIClient} {
		if name, err := authority.Peer(handshake(t, *held), role, roots, start); err == nil {
			t.Errorf("it is taken for %s of %q", role, name)
		}
	}
	if _, err := authority.Peer(handshake(t, *held), authority.ControllerServer, roots, start); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]struct {
		held *tls.Certificate
		cas  authority.CAs
		at   time.Time
		good bool
	}{
		"fresh":      {held, as, start, true},
		"none":       {nil, as, start, false},
		"old":        {held, as, start.Add(authority.CertificateLife * 3 / 4), false},
		"another CA": {held, rotated(t, nil, start), start, false},
	} {
		if own := (&ownCertificate{held: c.held}); own.good(c.cas, c.at) != c.good {
			t.Errorf("%s: good is %v", name, !c.good)
		}
	}
}
