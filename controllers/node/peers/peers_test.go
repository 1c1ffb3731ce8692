package peers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubeqemu/kubeqemu/internal/authority"
	"github.com/kubeqemu/kubeqemu/internal/authority/authoritytest"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// target plays a node to which a guest is to come from node a.
type target struct {
	mu      sync.Mutex
	offered *Offer
	refuse  error
	guests  chan net.Conn // the launcher's other ends
	// received is closed once the guest is to be received.
	received chan struct{}
}

func (t *target) Expects(_ context.Context, node string) bool { return node == "a" }

func (t *target) Prepare(_ context.Context, node string, migration types.UID, offer *Offer) (*Answer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if node != "a" || migration != "m" {
		return nil, ErrUnexpected
	}
	t.offered = offer
	return &Answer{Granted: offer.Wishes}, t.refuse
}

func (t *target) State(_ context.Context, node string, migration types.UID) (net.Conn, error) {
	return t.open(node, migration)
}

func (t *target) Disk(_ context.Context, node string, migration types.UID, disk string) (net.Conn, error) {
	if disk != "root disk/1" {
		return nil, fmt.Errorf("there is no disk %q", disk)
	}
	return t.open(node, migration)
}

func (t *target) Receive(_ context.Context, node string, migration types.UID) error {
	if node != "a" || migration != "m" {
		return ErrUnexpected
	}
	close(t.received)
	return nil
}

func (t *target) open(node string, migration types.UID) (net.Conn, error) {
	if node != "a" || migration != "m" {
		return nil, ErrUnexpected
	}
	ours, theirs := net.Pipe()
	t.guests <- theirs
	return ours, nil
}

// issue makes a certificate of a virt-handler, or of another role.
func issue(ca *authoritytest.CA, role authority.Role, node string) *tls.Certificate {
	if role == authority.HandlerServer {
		return ca.Certify(role, node, role.ExtUsage(), authority.ServerName(node))
	}
	return ca.Certify(role, node, role.ExtUsage())
}

// serve starts node b's server, and returns where it is.
func serve(t *testing.T, cas *authoritytest.CA, shown *tls.Certificate, to Target) Destination {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Target: to, Clock: clock.RealClock{}, Log: logr.Discard(),
		Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return shown, nil },
		Roots:       func(context.Context) (*x509.CertPool, error) { return cas.Pool() }}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := s.serve(ctx, listener); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); done.Wait() })
	return Destination{Address: listener.Addr().String(), Node: "b", Migration: "m"}
}

// dial makes a client that shows a certificate. The destination's address gets its port.
func dial(cas *authoritytest.CA, shown *tls.Certificate, to *Destination) *Client {
	host, port, _ := net.SplitHostPort(to.Address)
	to.Address = host
	number := 0
	fmt.Sscan(port, &number)
	return &Client{handlerapi.Client{Now: time.Now, Port: number, Roots: cas.Pool,
		Certificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return shown, nil }}}
}

func offer() *Offer {
	return &Offer{Version: Version, Namespace: "default", Name: "vm", UID: "u", QEMUVersion: "7.2.22",
		Machine: qemuargs.Machine{Version: 1, Type: "pc-q35-7.2", MemoryBytes: 1 << 20}, CPU: CPU{Vendor: "x", Flags: []string{"a"}}}
}

// TestOfferAndBytesArrive: an offer arrives as it is, and bytes go both ways over channels.
func TestOfferAndBytesArrive(t *testing.T) {
	cas, b := authoritytest.New(t, "virt-handler"), &target{guests: make(chan net.Conn, 1), received: make(chan struct{})}
	to := serve(t, cas, issue(cas, authority.HandlerServer, "b"), b)
	source := dial(cas, issue(cas, authority.HandlerClient, "a"), &to)
	sent := offer()
	if _, err := source.Prepare(t.Context(), to, sent); err != nil {
		t.Fatal(err)
	}
	if got := b.offered; got.Name != "vm" || got.UID != "u" || got.Machine.Type != "pc-q35-7.2" || got.CPU.Flags[0] != "a" {
		t.Errorf("offered is %+v", got)
	}
	for name, open := range map[string]func() (net.Conn, error){
		"state": func() (net.Conn, error) { return source.State(t.Context(), to) },
		"disk":  func() (net.Conn, error) { return source.Disk(t.Context(), to, "root disk/1") },
	} {
		conn, err := open()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		guest := <-b.guests
		text := strings.Repeat(name, buffer)
		go io.WriteString(conn, text)
		got := make([]byte, len(text))
		if _, err := io.ReadFull(guest, got); err != nil || string(got) != text {
			t.Errorf("%s: %d bytes arrived, %v", name, len(got), err)
		}
		go io.WriteString(guest, "ok")
		if _, err := io.ReadFull(conn, got[:2]); err != nil || string(got[:2]) != "ok" {
			t.Errorf("%s: answered %q, %v", name, got[:2], err)
		}
		guest.Close()
		conn.SetReadDeadline(time.Now().Add(testkit.Patience))
		if _, err := conn.Read(got); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the end of one side does not end the other: %v", name, err)
		}
		conn.Close()
	}
	if err := source.Receive(t.Context(), to); err != nil {
		t.Error(err)
	}
	<-b.received
}

// TestStrangersAreRefused: nobody else gets in, and nothing else.
func TestStrangersAreRefused(t *testing.T) {
	cas, others := authoritytest.New(t, "virt-handler"), authoritytest.New(t, "virt-handler")
	server, client := issue(cas, authority.HandlerServer, "b"), issue(cas, authority.HandlerClient, "a")
	other := func(change func(*Destination)) func(*Destination) { return change }
	same := other(func(*Destination) {})
	for name, c := range map[string]struct {
		server, client *tls.Certificate
		to             func(*Destination)
		offer          func(*Offer)
		says           string
	}{
		"good":                {server, client, same, func(*Offer) {}, ""},
		"another source":      {server, issue(cas, authority.HandlerClient, "c"), same, func(*Offer) {}, "does not let this node's in"},
		"another CA's source": {server, issue(others, authority.HandlerClient, "a"), same, func(*Offer) {}, "does not let this node's in"},
		"virt-api":            {server, issue(cas, authority.APIClient, "a"), same, func(*Offer) {}, "does not let this node's in"},
		"a server":            {server, issue(cas, authority.HandlerServer, "a"), same, func(*Offer) {}, "does not let this node's in"},
		"another target":      {issue(cas, authority.HandlerServer, "c"), client, same, func(*Offer) {}, "not b."},
		"another CA's target": {issue(others, authority.HandlerServer, "b"), client, same, func(*Offer) {}, "unknown authority"},
		"a client as target":  {issue(cas, authority.HandlerClient, "b"), client, same, func(*Offer) {}, "certificate"},
		"another migration":   {server, client, other(func(d *Destination) { d.Migration = "n" }), func(*Offer) {}, "no such guest"},
		"a newer protocol":    {server, client, same, func(o *Offer) { o.Version++ }, "version 2"},
		"a long offer":        {server, client, same, func(o *Offer) { o.Name = strings.Repeat("x", maxOffer) }, "longer than"},
		"many values":         {server, client, same, func(o *Offer) { o.CPU.Flags = make([]string, maxValues) }, "values"},
	} {
		b := &target{guests: make(chan net.Conn, 1)}
		to := serve(t, cas, c.server, b)
		source := dial(cas, c.client, &to)
		c.to(&to)
		o := offer()
		c.offer(o)
		_, err := source.Prepare(t.Context(), to, o)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
		if (b.offered == nil) != (c.says != "") {
			t.Errorf("%s: the target was offered %+v", name, b.offered)
		}
	}
}

// TestTargetsReasonReachesTheSource: why the target cannot take a guest gets to the source.
func TestTargetsReasonReachesTheSource(t *testing.T) {
	cas, b := authoritytest.New(t, "virt-handler"), &target{refuse: errors.New("no \x1b[31mroom"), guests: make(chan net.Conn, 1)}
	to := serve(t, cas, issue(cas, authority.HandlerServer, "b"), b)
	source := dial(cas, issue(cas, authority.HandlerClient, "a"), &to)
	if _, err := source.Prepare(t.Context(), to, offer()); err == nil || !strings.Contains(err.Error(), "node b cannot take the guest") || !strings.Contains(err.Error(), "room") || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("%v", err)
	}
	if _, err := source.Disk(t.Context(), to, "other"); err == nil || !strings.Contains(err.Error(), `no disk "other"`) {
		t.Errorf("%v", err)
	}
}

// TestReadCPU: only the first processor counts.
func TestReadCPU(t *testing.T) {
	const text = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: Xeon\nflags\t\t: sse fpu\n\nprocessor\t: 1\nflags\t\t: other\n"
	got, err := ReadCPU(strings.NewReader(text))
	if err != nil || got.kind() != "GenuineIntel 6 85" || strings.Join(got.Flags, " ") != "fpu sse" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := ReadCPU(strings.NewReader("nothing")); err == nil {
		t.Error("an empty file has a processor")
	}
}

// TestWhichProcessorsGuestsAreTaken: a processor takes the guest of another if it has all its features, and with the
// host's own model if it is of the same kind.
func TestWhichProcessorsGuestsAreTaken(t *testing.T) {
	cpu := func(model string, flags ...string) CPU {
		return CPU{Vendor: "v", Family: "f", Model: model, Flags: flags}
	}
	bits := func(n int) CPU { return CPU{Flags: []string{"a"}, PhysBits: n} }
	for name, c := range map[string]struct {
		target, source CPU
		model          string
		takes          bool
		flags          []string
	}{
		"the same":                      {cpu("1", "a", "b"), cpu("1", "a", "b"), "host", true, nil},
		"more":                          {cpu("1", "a", "b"), cpu("1", "a"), "host", true, nil},
		"less":                          {cpu("1", "a"), cpu("1", "a", "b"), "Nehalem", false, nil},
		"another":                       {cpu("2", "a"), cpu("1", "a"), "host", false, nil},
		"another, by model":             {cpu("2", "a"), cpu("1", "a"), "Nehalem", true, nil},
		"unknown":                       {CPU{}, cpu("1", "a"), "Nehalem", false, nil},
		"wider addresses":               {bits(48), bits(46), "base", true, []string{"phys-bits=46"}},
		"narrower":                      {bits(46), bits(48), "base", false, []string{"phys-bits=48"}},
		"narrower, as the Machine says": {bits(46), bits(46), "base", false, []string{"aes=on", "phys-bits=48"}},
		"narrower, and the host's own":  {bits(46), bits(48), "host", false, []string{"host-phys-bits=on"}},
		"narrower, by model":            {bits(46), bits(48), "Nehalem", true, nil},
		"of unknown width":              {bits(46), bits(0), "host", true, nil},
		"target of unknown width":       {bits(0), bits(48), "base", true, []string{"phys-bits=48"}},
	} {
		if why := c.target.Takes(c.source, qemuargs.CPU{Model: c.model, Flags: c.flags}); (why == "") != c.takes {
			t.Errorf("%s: %q", name, why)
		}
	}
}

// TestOfferWithAnUnknownFieldIsRefused: the guest would go on without what the field says.
func TestOfferWithAnUnknownFieldIsRefused(t *testing.T) {
	for text, says := range map[string]string{
		`{"version":1,"machine":{"version":1,"disks":[{"name":"a","teleport":true}]}}`: `unknown field "teleport"`,
		`{"version":1,"teleport":{}}`:                             `unknown field "teleport"`,
		`{"version":1,"` + strings.Repeat("x", 100<<10) + `":{}}`: `unknown field "x`,
		`{"version":1,"machine":{"version":1}}`:                   "",
	} {
		_, err := readOffer([]byte(text))
		if (err == nil) != (says == "") || err != nil && (!strings.Contains(err.Error(), says) || len(err.Error()) > 1<<10) {
			t.Errorf("%.80s: %.300v", text, err)
		}
	}
}

// FuzzOffer: no text takes virt-handler down, and what is taken has the protocol's version.
func FuzzOffer(f *testing.F) {
	f.Add([]byte(`{"version":1,"machine":{"version":1,"nics":[{}]}}`))
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`{"version":1,"machine":{"teleport":true}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if o, err := readOffer(text); err == nil && o.Version != Version {
			t.Errorf("taken: %+v", o)
		}
	})
}
