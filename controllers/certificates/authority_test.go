package certificates

import (
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/authority"
)

// start is in the future of the machine that runs the test, so that nothing
// depends on its clock.
var start = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)

// rotated is the CA after a rotation at a time.
func rotated(t *testing.T, as authority.CAs, at time.Time) authority.CAs {
	t.Helper()
	next, _, err := as.Rotate(at, authority.New(component))
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// A CA is published for an hour before it signs, one at least is always there to
// sign, and whoever has read the bundle within the last hour believes what is
// signed, until it expires.
func TestRotationOverAYear(t *testing.T) {
	const step = 10 * time.Minute
	key := newKey(t, elliptic.P256())
	w := wanted{role: Client, node: "node-1", key: &key.PublicKey}
	var as authority.CAs
	type published struct {
		at   time.Time
		pool *x509.CertPool
	}
	var history []published
	made, keys := 0, 0
	var signer *x509.Certificate
	for now := start; now.Before(start.Add(365 * 24 * time.Hour)); now = now.Add(step) {
		if len(as) == 0 || !now.Before(as.NextChange(now)) {
			next, changed, err := as.Rotate(now, authority.New(component))
			if err != nil {
				t.Fatal(err)
			}
			if !changed {
				t.Fatalf("%s: it was time, and nothing changed", now)
			}
			if len(as) == 0 || next[0] != as[0] {
				made++
			}
			as = next
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM(as.Bundle())
			history = append(history, published{now, pool})
		} else if _, changed, err := as.Rotate(now, authority.New(component)); changed || err != nil {
			t.Fatalf("%s: changed before its time (%v)", now, err)
		}
		if len(as) > 3 {
			t.Fatalf("%s: %d authorities", now, len(as))
		}
		keys = 0
		for _, a := range as {
			if a.Key != nil {
				keys++
			}
		}
		if by := as[as.Signing(now)].Certificate; by != signer {
			signer = by
			text, err := sign(as, w, 0, now)
			if err != nil {
				t.Fatal(err)
			}
			issued, err := issuedFor(text, key)
			if err != nil {
				t.Fatal(err)
			}
			for i, p := range history {
				readUntil := start.Add(1000 * 24 * time.Hour)
				if i+1 < len(history) {
					readUntil = history[i+1].at.Add(authority.SettleTime)
				}
				// The bundle is read from p.at on, and by all replaced at readUntil.
				if now.Before(readUntil) && !p.at.After(now) {
					for _, at := range []time.Time{now, issued.Leaf.NotAfter.Add(-time.Second)} {
						if _, err := issued.Leaf.Verify(x509.VerifyOptions{Roots: p.pool, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
							t.Errorf("signed at %s, bundle of %s, at %s: %v", now, p.at, at, err)
						}
					}
				}
			}
		}
	}
	if made < 18 || made > 19 {
		t.Errorf("%d authorities in a year, want one every 20 days", made)
	}
	if keys > 2 {
		t.Errorf("%d keys are kept", keys)
	}
}

func TestExpiredOrKeylessCAIsReplaced(t *testing.T) {
	as := rotated(t, nil, start)
	later := start.Add(authority.Life + time.Hour)
	next := rotated(t, as, later)
	if len(next) != 2 || next[0] == as[0] || next.Signing(later) != 0 || next[0].Key == nil {
		t.Errorf("an expired CA became %+v", next)
	}
	damaged := authority.CAs{{Certificate: as[0].Certificate}} // its key is lost
	next = rotated(t, damaged, start.Add(time.Hour))
	if len(next) != 2 || next[0].Key == nil || next.Signing(start.Add(time.Hour)) != 0 {
		t.Errorf("a CA without key became %+v", next)
	}
}

func TestAuthoritiesReadBack(t *testing.T) {
	as := rotated(t, nil, start)
	as = rotated(t, as, start.Add(authority.Life*2/3))
	if len(as) != 2 {
		t.Fatalf("%d authorities", len(as))
	}
	keys, err := as.Keys()
	if err != nil {
		t.Fatal(err)
	}
	got, err := authority.Parse(as.Bundle(), keys)
	if err != nil || len(got) != 2 {
		t.Fatal(got, err)
	}
	for i := range as {
		if !got[i].Certificate.Equal(as[i].Certificate) || got[i].Key == nil || !got[i].Key.Equal(as[i].Key) {
			t.Errorf("authority %d differs", i)
		}
	}
	for name, text := range map[string][2]string{
		"not a CA": {string(mustSign(t, as)), ""},
		"bad DER":  {"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", ""},
		"bad key":  {string(as.Bundle()), "-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n"},
	} {
		if got, err := authority.Parse([]byte(text[0]), []byte(text[1])); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func mustSign(t *testing.T, as authority.CAs) []byte {
	t.Helper()
	text, err := sign(as, wanted{Client, "node-1", &newKey(t, elliptic.P256()).PublicKey}, 0, start)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestCertificateDoesNotOutliveItsCA(t *testing.T) {
	as := rotated(t, nil, start)
	key := newKey(t, elliptic.P256())
	nearEnd := as[0].Certificate.NotAfter.Add(-time.Hour)
	for _, c := range []struct {
		life      time.Duration
		now, want time.Time
	}{
		{0, start, start.Add(authority.CertificateLife)},
		{time.Hour, start, start.Add(time.Hour)},
		{1000 * time.Hour, start, start.Add(authority.CertificateLife)},
		{0, nearEnd, as[0].Certificate.NotAfter},
	} {
		text, err := sign(as, wanted{Server, "node-1", &key.PublicKey}, c.life, c.now)
		if err != nil {
			t.Fatal(err)
		}
		issued, err := issuedFor(text, key)
		if err != nil {
			t.Fatal(err)
		}
		if !issued.Leaf.NotAfter.Equal(c.want) {
			t.Errorf("a life of %s from %s ends at %s, want %s", c.life, c.now, issued.Leaf.NotAfter, c.want)
		}
		if r := renewal(issued.Leaf); r.Before(c.now.Add(-authority.ClockSkew)) || !r.Before(issued.Leaf.NotAfter) {
			t.Errorf("it is renewed at %s", r)
		}
	}
}

// TestOnlyTheExpectedRolePassesAHandshake: of all pairs of certificate and expected role, only the right ones
// pass, in real handshakes; a certificate of another CA never does.
func TestOnlyTheExpectedRolePassesAHandshake(t *testing.T) {
	as, others := rotated(t, nil, start), rotated(t, nil, start)
	issue := func(as authority.CAs, r Role, node string) tls.Certificate {
		key := newKey(t, elliptic.P256())
		text, err := sign(as, wanted{r, node, &key.PublicKey}, 0, start)
		if err != nil {
			t.Fatal(err)
		}
		issued, err := issuedFor(text, key)
		if err != nil {
			t.Fatal(err)
		}
		return *issued
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(as.Bundle())
	for _, c := range []struct {
		name    string
		shown   tls.Certificate
		wanted  Role
		at      time.Time
		refusal string
	}{
		{"client", issue(as, Client, "a"), Client, start, ""},
		{"server", issue(as, Server, "a"), Server, start, ""},
		{"client as server", issue(as, Client, "a"), Server, start, "not valid"},
		{"server as client", issue(as, Server, "a"), Client, start, "incompatible key usage"},
		{"client of another CA", issue(others, Client, "a"), Client, start, "unknown authority"},
		{"server of another CA", issue(others, Server, "a"), Server, start, "unknown authority"},
		{"expired", issue(as, Client, "a"), Client, start.Add(2 * authority.CertificateLife), "expired"},
	} {
		node, err := authority.Peer(handshake(t, c.shown), c.wanted, roots, c.at)
		switch {
		case c.refusal == "" && (err != nil || node != "a"):
			t.Errorf("%s: %q, %v", c.name, node, err)
		case c.refusal != "" && (err == nil || !strings.Contains(err.Error(), c.refusal)):
			t.Errorf("%s: %q, %v, want to be refused: %s", c.name, node, err, c.refusal)
		}
	}
	if _, err := authority.Peer(tls.ConnectionState{}, Client, roots, start); err == nil {
		t.Error("a peer without certificate passed")
	}
}

// handshake returns what a peer sees of who shows a certificate.
func handshake(t *testing.T, shown tls.Certificate) tls.ConnectionState {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	server := tls.Server(a, &tls.Config{Certificates: []tls.Certificate{shown}})
	client := tls.Client(b, &tls.Config{InsecureSkipVerify: true})
	done := make(chan error, 1)
	go func() { done <- server.Handshake() }()
	if err := client.Handshake(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return client.ConnectionState()
}
