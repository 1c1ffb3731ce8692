// Package handlerapi is the protocol in which virt-api asks virt-handlers: HTTP/1.1 over TLS.
// Each end shows a certificate of its role.
//
//	PUT /v1/namespaces/NS/virtualmachineinstances/NAME/OPERATION?uid=UID
//	GET the same, with "Upgrade: kubeqemu-stream": raw bytes follow the answer 101
//	GET the same, without: a document
//
// Errors are answered with a status and one line of text.
package handlerapi

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/authority"
	"github.com/kubeqemu/kubeqemu/internal/batch"
)

// Port that virt-handler listens on, on its node's addresses; KubeVirt's.
const Port = 8186

// Operations. Console and VNC are streams.
const (
	Pause   = "pause"
	Unpause = "unpause"
	Reset   = "reset"
	Grace   = "grace" // with Seconds
	Console = "console"
	VNC     = "vnc" // with PreserveSession

	Screenshot = "screenshot" // a stream of one PNG, with MoveCursor
)

// Pattern is the path of all operations, for http.ServeMux.
const Pattern = "/v1/namespaces/{namespace}/virtualmachineinstances/{name}/{operation}"

// Protocol is what a stream's connection is upgraded to.
const Protocol = "kubeqemu-stream"

// Parameters.
const (
	UID             = "uid"
	Seconds         = "seconds"
	PreserveSession = "preserveSession"
	MoveCursor      = "moveCursor"
)

// MaxText bounds the text of an error, in bytes.
const MaxText = 1024

// Error is an answer of virt-handler that is not a success.
type Error struct {
	Code int // HTTP status
	Text string
}

func (e *Error) Error() string { return e.Text }

// Target is a VMI, and the address of its node's virt-handler.
type Target struct {
	Address              string // without port
	Node                 string
	Namespace, Name, UID string
}

// Client asks virt-handlers. Every request has a connection of its own, because requests are
// rare.
type Client struct {
	// Certificate returns virt-api's client certificate.
	Certificate func(*tls.CertificateRequestInfo) (*tls.Certificate, error)
	// Roots returns the CAs of virt-handlers.
	Roots func() (*x509.CertPool, error)
	Now   func() time.Time
	// Port replaces the constant Port, in tests.
	Port int
	// GoneAfter replaces the constant GoneAfter, in tests.
	GoneAfter time.Duration
}

// KeepAlive lets either end find out within 40 s that the other's node has gone, while the
// connection is idle. EndWhenGone does so while data is on its way.
func KeepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 5}
}

const (
	dialTimeout = 10 * time.Second
	// answerTimeout is longer than virt-handler waits for a launcher.
	answerTimeout = 45 * time.Second
)

// Do has an operation carried out.
func (c *Client) Do(ctx context.Context, to Target, operation string, parameters url.Values) error {
	conn, response, err := c.ask(ctx, http.MethodPut, to, operation, parameters)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return Refusal(response)
	}
	return nil
}

// Stream opens a stream, which the caller closes. It ends by itself when the node
// is gone.
func (c *Client) Stream(ctx context.Context, to Target, operation string, parameters url.Values) (net.Conn, error) {
	return c.Upgraded(c.ask(ctx, http.MethodGet, to, operation, parameters))
}

// Upgraded makes a stream of the answer to a request for one. It takes the results of Send.
func (c *Client) Upgraded(conn net.Conn, response *http.Response, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		defer conn.Close()
		return nil, Refusal(response)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		conn.Close()
		return nil, err
	}
	return &watched{conn, EndWhenGone(conn, cmp.Or(c.GoneAfter, GoneAfter))}, nil
}

// Refusal is the error that an answer without success brings.
func Refusal(response *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(response.Body, MaxText))
	if err != nil {
		return fmt.Errorf("read virt-handler's answer: %w", err)
	}
	return &Error{response.StatusCode, strings.TrimSpace(string(text))}
}

// ask sends a request of virt-api and reads the head of the answer.
func (c *Client) ask(ctx context.Context, method string, to Target, operation string, parameters url.Values) (net.Conn, *http.Response, error) {
	query := url.Values{UID: {to.UID}}
	for key, values := range parameters {
		query[key] = values
	}
	request := &http.Request{Method: method, Header: http.Header{}, URL: &url.URL{
		Path:     strings.NewReplacer("{namespace}", to.Namespace, "{name}", to.Name, "{operation}", operation).Replace(Pattern),
		RawQuery: query.Encode(),
	}}
	if method == http.MethodGet && streams(operation) {
		request.Header.Set("Connection", "Upgrade")
		request.Header.Set("Upgrade", Protocol)
	}
	return c.Send(ctx, to, request, answerTimeout)
}

// Send sends a request to the virt-handler of a node, and reads the head of the answer within a time. The caller
// closes the connection. Of to, only the address and the node count.
func (c *Client) Send(ctx context.Context, to Target, request *http.Request, within time.Duration) (net.Conn, *http.Response, error) {
	conn, err := c.dial(ctx, to)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to virt-handler of node %s: %w", to.Node, err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	request.Host = authority.ServerName(to.Node)
	response, err := roundTrip(conn, request, within)
	if err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("ask virt-handler of node %s: %w", to.Node, err)
	}
	return response.conn, response.head, nil
}

type answer struct {
	conn net.Conn
	head *http.Response
}

func roundTrip(conn *tls.Conn, request *http.Request, within time.Duration) (answer, error) {
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		return answer{}, err
	}
	if err := request.Write(conn); err != nil {
		return answer{}, err
	}
	reader, head, err := readHead(conn, request)
	return answer{&buffered{conn, reader}, head}, err
}

// maxHead bounds the status line and the headers of an answer, in bytes: net/http reads them to
// their end, and an attacker may have the node.
const maxHead = 16 << 10

func readHead(from io.Reader, request *http.Request) (*bufio.Reader, *http.Response, error) {
	limited := &io.LimitedReader{R: from, N: maxHead}
	reader := bufio.NewReader(limited)
	head, err := http.ReadResponse(reader, request)
	limited.N = math.MaxInt64
	return reader, head, err
}

// buffered is a connection of which reader has read some bytes already.
type buffered struct {
	*tls.Conn
	reader *bufio.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.reader.Read(p) }

func (c *Client) dial(ctx context.Context, to Target) (*tls.Conn, error) {
	roots, err := c.Roots()
	if err != nil {
		return nil, err
	}
	port := Port
	if c.Port != 0 {
		port = c.Port
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: authority.ServerName(to.Node), GetClientCertificate: c.Certificate, Time: c.Now,
		VerifyConnection: func(state tls.ConnectionState) error {
			node, err := authority.Peer(state, authority.HandlerServer, roots, c.Now())
			if err == nil && node != to.Node {
				err = fmt.Errorf("it is that of node %q", node)
			}
			return err
		},
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := (&net.Dialer{KeepAliveConfig: KeepAlive()}).DialContext(ctx, "tcp", net.JoinHostPort(to.Address, fmt.Sprint(port)))
	if err != nil {
		return nil, err
	}
	secured := tls.Client(batch.New(conn), config) // a migration's stream begins to batch: see package peers
	if err := secured.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return secured, nil
}

// ServerConfig lets in virt-api, and no other peer. roots returns the CAs of virt-api.
func ServerConfig(certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error), roots func() (*x509.CertPool, error), now func() time.Time) *tls.Config {
	return ConfigFor(certificate, now, func(state tls.ConnectionState) error {
		pool, err := roots()
		if err != nil {
			return err
		}
		name, err := authority.Peer(state, authority.APIClient, pool, now())
		if err == nil && name != authority.APIName {
			err = errors.New("the peer's certificate is not in virt-api's name")
		}
		return err
	})
}

// ConfigFor lets in the peers that check accepts.
func ConfigFor(certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error), now func() time.Time, check func(tls.ConnectionState) error) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, GetCertificate: certificate, Time: now, NextProtos: []string{"http/1.1"},
		// Any certificate, because VerifyConnection checks it: the CAs change while the server
		// runs.
		ClientAuth: tls.RequireAnyClientCert, SessionTicketsDisabled: true, VerifyConnection: check,
	}
}
