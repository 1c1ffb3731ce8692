package peer

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

func pair(t *testing.T, reads bool) *Pair {
	t.Helper()
	p, err := New(reads)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// know tells a pair of another.
func know(t *testing.T, p, other *Pair, address string) {
	t.Helper()
	if err := p.Tell(importer.Peer{Identity: other.Identity(), Address: address}); err != nil {
		t.Fatal(err)
	}
}

// greet greets everybody whose handshake succeeds.
func greet(t *testing.T, p *Pair) (address string) {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", p.ServerConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.WriteString(conn, "hello")
				_, _ = io.Copy(io.Discard, conn) // until the other side ends
			}()
		}
	}()
	return listener.Addr().String()
}

// TestTellRefusesWhatIsNoPeer: what is no peer is refused, and the same peer again changes nothing.
func TestTellRefusesWhatIsNoPeer(t *testing.T) {
	t.Parallel()
	good := pair(t, false).Identity().Certificate
	block, _ := pem.Decode([]byte(good))
	for name, c := range map[string]struct {
		certificate, address string
		reads, writes        bool
	}{
		"good":             {good, "10.0.0.1:8445", true, true},
		"IPv6":             {good, "[2001:db8::1]:8445", true, true},
		"no address":       {good, "", false, true},
		"a name":           {good, "host:8445", false, true},
		"no port":          {good, "10.0.0.1", false, true},
		"port 0":           {good, "10.0.0.1:0", false, true},
		"unspecified":      {good, "0.0.0.0:8445", false, true},
		"multicast":        {good, "224.0.0.1:8445", false, true},
		"no certificate":   {"", "10.0.0.1:8445", false, false},
		"no PEM":           {"rubbish", "10.0.0.1:8445", false, false},
		"two":              {good + good, "10.0.0.1:8445", false, false},
		"a key":            {string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: block.Bytes})), "10.0.0.1:8445", false, false},
		"rubbish in PEM":   {string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})), "10.0.0.1:8445", false, false},
		"rubbish after it": {good + "x", "10.0.0.1:8445", false, false},
	} {
		for reads, want := range map[bool]bool{true: c.reads, false: c.writes} {
			p := pair(t, reads)
			err := p.Tell(importer.Peer{Identity: importer.Identity{Certificate: c.certificate}, Address: c.address})
			if (err == nil) != want || (p.Current() != nil) != want {
				t.Errorf("%s, reads %v: %v", name, reads, err)
			}
		}
	}
	p, first, second := pair(t, false), pair(t, true), pair(t, true)
	know(t, p, first, "")
	before := p.Current()
	know(t, p, first, "")
	if p.Current() != before || before.Replaced().Err() != nil {
		t.Error("the same peer again is another one")
	}
	know(t, p, second, "")
	if p.Current() == before || before.Replaced().Err() == nil {
		t.Error("another peer does not take the place")
	}
}

// TestControllersQuestionsAreAnswered: what virt-controller asks and tells.
func TestControllersQuestionsAreAnswered(t *testing.T) {
	t.Parallel()
	p, other := pair(t, false), pair(t, true)
	mux := http.NewServeMux()
	p.Handle(mux)
	ask := func(method, path, body string) *httptest.ResponseRecorder {
		recorder := httptest.NewRecorder()
		mux.ServeHTTP(recorder, httptest.NewRequest(method, path, strings.NewReader(body)))
		return recorder
	}
	var identity importer.Identity
	if err := json.Unmarshal(ask("GET", importer.IdentityPath, "").Body.Bytes(), &identity); err != nil || identity != p.Identity() {
		t.Errorf("the identity is %+v: %v", identity, err)
	}
	good, err := json.Marshal(importer.Peer{Identity: other.Identity()})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		method, body string
		want         int
	}{
		"no JSON":   {"PUT", "x", http.StatusBadRequest},
		"nothing":   {"PUT", "{}", http.StatusBadRequest},
		"too long":  {"PUT", `{"address":"` + strings.Repeat("x", maxPeer) + `"}`, http.StatusBadRequest},
		"no method": {"POST", string(good), http.StatusMethodNotAllowed},
	} {
		if got := ask(c.method, importer.PeerPath, c.body); got.Code != c.want || p.Current() != nil {
			t.Errorf("%s: %d %s", name, got.Code, got.Body)
		}
	}
	for range 2 {
		if got := ask("PUT", importer.PeerPath, string(good)); got.Code != http.StatusNoContent || p.Current() == nil {
			t.Errorf("%d %s", got.Code, got.Body)
		}
	}
}

// TestPeersTalkToEachOtherAlone: each side talks to the other alone, and to nobody before it is told.
func TestPeersTalkToEachOtherAlone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// server and client say whether each side is told of the other, of a stranger, or of nobody.
		server, client string
		want           bool
	}{
		"each other":              {"other", "other", true},
		"the server's stranger":   {"stranger", "other", false},
		"the client's stranger":   {"other", "stranger", false},
		"the server knows nobody": {"", "other", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, client, stranger := pair(t, false), pair(t, true), pair(t, true)
			address := greet(t, server)
			switch c.server {
			case "other":
				know(t, server, client, "")
			case "stranger":
				know(t, server, stranger, "")
			}
			know(t, client, map[string]*Pair{"other": server, "stranger": stranger}[c.client], address)
			got := ""
			conn, err := client.Dial(context.Background())
			if err == nil {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
				text := make([]byte, 5)
				n, _ := io.ReadFull(conn, text) // the server fails a handshake after the client's last word
				got = string(text[:n])
			}
			if (got == "hello") != c.want {
				t.Errorf("the server says %q: %v", got, err)
			}
		})
	}
}

// TestOlderTLSIsRefused: the server wants TLS 1.3 and a certificate.
func TestOlderTLSIsRefused(t *testing.T) {
	t.Parallel()
	server, client := pair(t, false), pair(t, true)
	know(t, server, client, "")
	address := greet(t, server)
	for name, config := range map[string]*tls.Config{
		"TLS 1.2":        {MaxVersion: tls.VersionTLS12, Certificates: []tls.Certificate{client.own}},
		"no certificate": {},
	} {
		config.InsecureSkipVerify = true
		conn, err := tls.Dial("tcp", address, config)
		if err != nil {
			continue
		}
		_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
		if n, err := conn.Read(make([]byte, 5)); n > 0 || err == nil {
			t.Errorf("%s: the server answers", name)
		}
		conn.Close()
	}
}

// TestReplacedPeersConnectionsEnd: connections to a peer end when another takes its place, and the next goes to that one.
func TestReplacedPeersConnectionsEnd(t *testing.T) {
	t.Parallel()
	client, first, second := pair(t, true), pair(t, false), pair(t, false)
	know(t, first, client, "")
	know(t, second, client, "")
	know(t, client, first, greet(t, first))
	dial := func() net.Conn {
		t.Helper()
		conn, err := client.Dial(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
		if _, err := io.ReadFull(conn, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	conn := dial()
	know(t, client, second, greet(t, second))
	if _, err := conn.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("the earlier connection goes on: %v", err)
	}
	dial()
}

// TestWaitEndsWithContextOrAPeer: waiting ends with its context, and when a peer is told.
func TestWaitEndsWithContextOrAPeer(t *testing.T) {
	t.Parallel()
	p := pair(t, false)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := p.Ready(ctx); err == nil {
		t.Error("a peer is known that nobody told")
	}
	ready := make(chan error, 1)
	go func() { ready <- p.Ready(context.Background()) }()
	know(t, p, pair(t, true), "")
	if err := <-ready; err != nil {
		t.Error(err)
	}
}
