// Package peer is how the two pods of a copied claim know each other. Each makes a key and a certificate in
// memory, and virt-controller tells each the other's certificate. A pod is who has the key of exactly that
// certificate: no authority, no name and no time of validity counts.
package peer

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/importer"
)

// Pair is this pod and the other one.
type Pair struct {
	own  tls.Certificate
	text string
	// reads: the other pod serves, so it must have an address.
	reads bool

	// asked is when virt-controller last asked for the identity.
	asked atomic.Pointer[time.Time]

	mu    sync.Mutex
	other *Other
	// first is closed when a peer is told for the first time.
	first chan struct{}
}

// Other is the other pod as it was told.
type Other struct {
	// Address is where the pod serves. The pod that reads has none.
	Address     netip.AddrPort
	certificate []byte
	// replaced ends when another peer takes this one's place.
	replaced context.Context
	replace  context.CancelFunc
}

// New makes a key and a certificate. reads: this pod reads from the other one.
func New(reads bool) (*Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "virt-importer"},
		// Nobody looks at the times. The last is the one that says that there is none (RFC 5280).
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	return &Pair{
		own:   tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		text:  string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		reads: reads, first: make(chan struct{}),
	}, nil
}

// Asked is when somebody last asked for the identity over the loopback address, or the zero time. virt-controller asks
// every 2 s.
func (p *Pair) Asked() time.Time {
	if at := p.asked.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// Identity is what the other pod is to be told.
func (p *Pair) Identity() importer.Identity { return importer.Identity{Certificate: p.text} }

// Tell says who the other pod is. The same again changes nothing. Connections of an earlier peer end.
func (p *Pair) Tell(told importer.Peer) error {
	other, err := p.read(told)
	if err != nil {
		return fmt.Errorf("read the peer: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if before := p.other; before == nil {
		close(p.first)
	} else if before.Address == other.Address && bytes.Equal(before.certificate, other.certificate) {
		return nil
	} else {
		defer before.replace()
	}
	other.replaced, other.replace = context.WithCancel(context.Background())
	p.other = other
	return nil
}

// read reads what was told.
func (p *Pair) read(told importer.Peer) (*Other, error) {
	block, rest := pem.Decode([]byte(told.Certificate))
	if block == nil || block.Type != "CERTIFICATE" || strings.TrimSpace(string(rest)) != "" {
		return nil, errors.New("its certificate is not one certificate in PEM")
	}
	if _, err := x509.ParseCertificate(block.Bytes); err != nil {
		return nil, errors.New("its certificate cannot be read")
	}
	other := &Other{certificate: block.Bytes}
	if !p.reads {
		return other, nil
	}
	address, err := netip.ParseAddrPort(told.Address)
	if err != nil || address.Port() == 0 || address.Addr().IsUnspecified() || address.Addr().IsMulticast() {
		return nil, errors.New("its address is not that of a pod, with a port")
	}
	other.Address = address
	return other, nil
}

// Current is the other pod, or nil before it was told.
func (p *Pair) Current() *Other {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.other
}

// Wait waits until the other pod was told, or ctx ends.
func (p *Pair) Wait(ctx context.Context) (*Other, error) {
	select {
	case <-p.first:
		return p.Current(), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Ready is Wait without the other pod.
func (p *Pair) Ready(ctx context.Context) error {
	_, err := p.Wait(ctx)
	return err
}

// Replaced ends when another peer takes this one's place.
func (o *Other) Replaced() context.Context { return o.replaced }

// Is says whether a connection's certificate is the other pod's. That the other side has the key too is
// known only when something was read from the connection.
func (o *Other) Is(state *tls.ConnectionState) bool {
	return o != nil && state != nil && len(state.PeerCertificates) > 0 && bytes.Equal(state.PeerCertificates[0].Raw, o.certificate)
}
