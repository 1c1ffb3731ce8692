package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"
)

const (
	// dialTimeout bounds a connection's making, and handshakeTimeout its handshake.
	dialTimeout      = 10 * time.Second
	handshakeTimeout = 10 * time.Second
)

// errStranger fails the handshake of everybody but the peer.
var errStranger = errors.New("the other side is not the peer")

// verify fails the handshake with everybody but the peer.
func (p *Pair) verify(state tls.ConnectionState) error {
	if !p.Current().Is(&state) {
		return errStranger
	}
	return nil
}

// config is for both sides. Sessions are not resumed, so each connection shows a certificate.
func (p *Pair) config() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		SessionTicketsDisabled: true,
		VerifyConnection:       p.verify,
		NextProtos:             []string{"http/1.1"},
	}
}

// ServerConfig is for connections from the peer. Before a peer was told every handshake fails.
func (p *Pair) ServerConfig() *tls.Config {
	config := p.config()
	config.Certificates = []tls.Certificate{p.own}
	config.ClientAuth = tls.RequireAnyClientCert // which verify looks at
	return config
}

// Dial connects to the peer that was told last, and to nobody else. The connection ends when another peer
// takes its place.
func (p *Pair) Dial(ctx context.Context) (net.Conn, error) {
	other, err := p.Wait(ctx)
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	raw, err := dialer.DialContext(ctx, "tcp", other.Address.String())
	if err != nil {
		return nil, fmt.Errorf("connect to the peer: %w", err)
	}
	config := p.config()
	config.InsecureSkipVerify = true // verify compares the certificate itself
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &p.own, nil }
	conn := tls.Client(raw, config)
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, fmt.Errorf("connect to the peer: %w", err)
	}
	return &dialled{Conn: conn, stop: context.AfterFunc(other.replaced, func() { raw.Close() })}, nil
}

// dialled is a connection that ends with its peer.
type dialled struct {
	net.Conn
	stop func() bool
}

// Close ends the connection.
func (d *dialled) Close() error {
	d.stop()
	return d.Conn.Close()
}
