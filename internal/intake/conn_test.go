package intake

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

const strangers = 8

// testServer is one on the loopback, whose peers are known by a certificate.
type testServer struct {
	t       *testing.T
	address string
	certificate,
	client tls.Certificate
}

func certificate(t *testing.T, padding int) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), Subject: pkix.Name{CommonName: "x", OrganizationalUnit: []string{strings.Repeat("x", padding)}}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func newTestServer(t *testing.T, handler http.Handler) *testServer {
	t.Helper()
	s := &testServer{t: t, certificate: certificate(t, 0), client: certificate(t, 0)}
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = inner.Addr().String()
	config := Known(&tls.Config{Certificates: []tls.Certificate{s.certificate}, ClientAuth: tls.RequestClientCert}, func(state tls.ConnectionState) bool {
		return len(state.PeerCertificates) > 0 && bytes.Equal(state.PeerCertificates[0].Raw, s.client.Certificate[0])
	})
	server := Server(handler, logr.Discard())
	go server.Serve(tls.NewListener(Listen(inner, strangers), config))
	t.Cleanup(func() { server.Close() })
	return s
}

// dial connects from an address of the loopback's.
func (s *testServer) dial(from string) net.Conn {
	s.t.Helper()
	conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", s.address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	return conn
}

func (s *testServer) tls(from string, certificates ...tls.Certificate) *tls.Conn {
	return tls.Client(s.dial(from), &tls.Config{InsecureSkipVerify: true, Certificates: certificates, NextProtos: []string{"h2", "http/1.1"}})
}

// ask asks on a connection, and leaves it open.
func ask(conn net.Conn, head string) (int, error) {
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n"+head+"\r\n"); err != nil {
		return 0, err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

var hello = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, Vouched(r.Context())) })

// TestOneSilentAddressKeepsNobodyOut: one address that connects without end, and says nothing, keeps no
// other out, nor what another has open.
func TestOneSilentAddressKeepsNobodyOut(t *testing.T) {
	s := newTestServer(t, hello)
	kept := s.tls("127.0.0.3")
	known := s.tls("127.0.0.4", s.client)
	for i := range 5 * strangers {
		for _, conn := range []*tls.Conn{kept, known, s.tls("127.0.0.5")} {
			if code, err := ask(conn, ""); err != nil || code != http.StatusOK {
				t.Fatalf("after %d silent connections, %s: %d, %v", i, conn.LocalAddr(), code, err)
			}
		}
		s.dial("127.0.0.2")
	}
}

// TestStrangersOfManyAddresses: nor do as many addresses as there may be connections.
func TestStrangersOfManyAddresses(t *testing.T) {
	s := newTestServer(t, hello)
	for i := range 3 * strangers {
		s.dial(fmt.Sprint("127.0.1.", 1+i))
		if code, err := ask(s.tls("127.0.0.3"), ""); err != nil || code != http.StatusOK {
			t.Fatalf("after %d silent addresses: %d, %v", i+1, code, err)
		}
	}
	// Also one that was not there before.
	for i := range 3 * strangers {
		s.dial(fmt.Sprint("127.0.2.", 1+i))
	}
	if code, err := ask(s.tls("127.0.0.4"), ""); err != nil || code != http.StatusOK {
		t.Errorf("a new address: %d, %v", code, err)
	}
}

// TestStrangersOfOneAddress: where all have the same address, those that get on
// are served.
func TestStrangersOfOneAddress(t *testing.T) {
	s := newTestServer(t, hello)
	kept := s.tls("127.0.0.2")
	for i := range 5 * strangers {
		s.dial("127.0.0.2")
		for _, conn := range []*tls.Conn{kept, s.tls("127.0.0.2")} {
			if code, err := ask(conn, ""); err != nil || code != http.StatusOK {
				t.Fatalf("after %d silent connections: %d, %v", i, code, err)
			}
		}
	}
}

// TestKnownPeersAreNotCounted: of peers that are known there may be any number.
func TestKnownPeersAreNotCounted(t *testing.T) {
	s := newTestServer(t, hello)
	var all []*tls.Conn
	for range 3 * strangers {
		all = append(all, s.tls("127.0.0.2", s.client))
		for _, conn := range all[max(0, len(all)-2):] {
			if code, err := ask(conn, ""); err != nil || code != http.StatusOK {
				t.Fatal(code, err)
			}
		}
	}
	for i, conn := range all {
		if code, err := ask(conn, ""); err != nil || code != http.StatusOK {
			t.Errorf("connection %d: %d, %v", i, code, err)
		}
	}
}

// TestCopiedCertificateIsNoKnownPeer: who has seen a known peer's certificate, as every node
// has that virt-api dials, is no known peer with it.
func TestCopiedCertificateIsNoKnownPeer(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := Listen(inner, strangers)
	defer listener.Close()
	seen := certificate(t, 0)
	seen.PrivateKey = certificate(t, 0).PrivateKey
	go func() {
		conn, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = ask(tls.Client(conn, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{seen}}), "")
	}()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	shown := false
	config := Known(&tls.Config{Certificates: []tls.Certificate{certificate(t, 0)}, ClientAuth: tls.RequestClientCert}, func(state tls.ConnectionState) bool {
		shown = len(state.PeerCertificates) > 0 && bytes.Equal(state.PeerCertificates[0].Raw, seen.Certificate[0])
		return shown
	})
	if err := tls.Server(conn, config).Handshake(); err == nil || !shown {
		t.Fatalf("the certificate was shown: %v; without its key: %v", shown, err)
	}
	if conn.(*Conn).known.Load() || listener.places.Used() != 1 {
		t.Error("a peer is known that has shown a certificate without its key")
	}
}

// TestRequestHeadsAreBounded: how much a peer may send before its request is whole.
func TestRequestHeadsAreBounded(t *testing.T) {
	s := newTestServer(t, hello)
	groups := strings.Repeat("X-Remote-Group: group-of-somebody\r\n", 1000)
	large := certificate(t, 50<<10)
	for name, c := range map[string]struct {
		with []tls.Certificate
		head []string // of one request after the other
		ok   bool
	}{
		"little":                        {nil, []string{"", "A: b\r\n", ""}, true},
		"too much":                      {nil, []string{groups}, false},
		"too much later":                {nil, []string{"", groups}, false},
		"a stranger's certificate":      {[]tls.Certificate{certificate(t, 1000)}, []string{""}, true},
		"a certificate without end":     {[]tls.Certificate{large}, []string{""}, false},
		"much, of a peer that is known": {[]tls.Certificate{s.client}, []string{groups, groups}, true},
	} {
		conn := s.tls("127.0.0.2", c.with...)
		var code int
		var err error
		for _, head := range c.head {
			if code, err = ask(conn, head); err != nil {
				break
			}
		}
		if (err == nil && code == http.StatusOK) != c.ok {
			t.Errorf("%s: %d, %v", name, code, err)
		}
	}
}

// TestHTTP2IsNotSpoken: a peer that would rather speak HTTP/2 is not given it.
func TestHTTP2IsNotSpoken(t *testing.T) {
	s := newTestServer(t, hello)
	conn := s.tls("127.0.0.2")
	if err := conn.Handshake(); err != nil {
		t.Fatal(err)
	}
	if got := conn.ConnectionState().NegotiatedProtocol; got == "h2" {
		t.Error("it is HTTP/2")
	}
}

func TestSourceOfAnAddress(t *testing.T) {
	for address, want := range map[string]string{
		"10.1.2.3:44": "10.1.2.3", "[::ffff:10.1.2.3]:44": "10.1.2.3", "[fd00::1]:44": "fd00::1", "[fe80::1%eth0]:44": "fe80::1", "@": "@",
	} {
		if got := Source(address); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}
