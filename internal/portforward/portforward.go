// Package portforward connects to ports of pods through the API server's pods/portforward. No NetworkPolicy
// stops it, and the pod may listen on its loopback address alone. Neither the pod nor its node is trusted:
// what they send is bounded.
package portforward

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// protocol is the protocol of pods/portforward.
const protocol = "portforward.k8s.io"

// Dialer connects to pods. client-go's own dialer would wait without end for an API server that does
// not answer.
type Dialer struct {
	config *rest.Config
	tls    *tls.Config
	host   *url.URL
}

// New makes a Dialer for the API server of a configuration.
func New(config *rest.Config) (*Dialer, error) {
	host, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	d := &Dialer{config: config, host: host}
	if host.Scheme == "https" {
		if d.tls, err = rest.TLSConfigFor(config); err != nil {
			return nil, fmt.Errorf("set up TLS to the API server: %w", err)
		}
		if d.tls == nil {
			d.tls = &tls.Config{}
		}
		d.tls = d.tls.Clone()
		d.tls.NextProtos = []string{"http/1.1"}
		if d.tls.ServerName == "" {
			d.tls.ServerName = host.Hostname()
		}
	}
	return d, nil
}

// Dial connects to a pod. The connection is made before the context ends, or not at all.
func (d *Dialer) Dial(ctx context.Context, pod types.NamespacedName) (*Conn, error) {
	upgrade := &upgrade{dialer: d}
	// The wrapping adds the credentials.
	client, err := rest.HTTPWrappersForConfig(d.config, upgrade)
	if err != nil {
		return nil, fmt.Errorf("set up the forwarding: %w", err)
	}
	at := d.host.JoinPath("api", "v1", "namespaces", pod.Namespace, "pods", pod.Name, "portforward")
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, at.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("forward to pod %s: %w", pod.Name, err)
	}
	request.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	request.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	request.Header.Set(httpstream.HeaderProtocolVersion, protocol)
	if _, err := client.RoundTrip(request); err != nil {
		return nil, fmt.Errorf("forward to pod %s: %w", pod.Name, err)
	}
	streams, err := spdy.NewClientConnection(&bounded{Conn: upgrade.conn, left: maxReceived})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("forward to pod %s: %w", pod.Name, err), upgrade.conn.Close())
	}
	return &Conn{conn: upgrade.conn, streams: streams}, nil
}

const (
	// maxReceived bounds what is received on a connection, which then ends.
	maxReceived = 1 << 20
	// maxFrame bounds a frame.
	maxFrame = 64 << 10
	// frameHead is the length of a SPDY frame's head. Its first bit says that it is a control frame, of
	// the type in bytes 2 and 3. The length of the rest is in bytes 5 to 7.
	frameHead = 8
	synStream = 1
)

// bounded reads SPDY frames. The API server only passes on what the kubelet of the pod's node sends, so
// an intruder on a node speaks here. The library makes room for a frame before it reads it, and keeps
// all that the other side sends and all streams that the other side opens.
type bounded struct {
	net.Conn
	left int
	// head is what is left of a frame's head, and body how much of its rest is still to come.
	head []byte
	body int
}

func (b *bounded) Read(p []byte) (int, error) {
	if len(b.head) == 0 && b.body == 0 {
		if err := b.next(); err != nil {
			return 0, err
		}
	}
	if len(b.head) > 0 {
		n := copy(p, b.head)
		b.head = b.head[n:]
		return n, nil
	}
	n, err := b.Conn.Read(p[:min(len(p), b.body)])
	b.body -= n
	return n, err
}

// next reads the head of a frame.
func (b *bounded) next() error {
	head := make([]byte, frameHead)
	if _, err := io.ReadFull(b.Conn, head); err != nil {
		return err
	}
	length := int(head[5])<<16 | int(head[6])<<8 | int(head[7])
	b.left -= frameHead + length
	switch {
	case length > maxFrame || b.left < 0:
		return errors.New("the pod's node sends too much")
	case head[0]&0x80 != 0 && int(head[2])<<8|int(head[3]) == synStream:
		return errors.New("the pod's node opens a stream by itself")
	}
	b.head, b.body = head, length
	return nil
}

// upgrade is a RoundTripper that keeps the connection of one request.
type upgrade struct {
	dialer *Dialer
	conn   net.Conn
}

func (u *upgrade) RoundTrip(request *http.Request) (response *http.Response, err error) {
	conn, err := u.dialer.connect(request.Context())
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(request.Context(), func() { conn.Close() })
	defer func() {
		if !stop() && err == nil {
			err = request.Context().Err()
		}
		if err != nil {
			conn.Close()
		}
	}()
	if err := request.Write(conn); err != nil {
		return nil, err
	}
	// The API server sends nothing behind its head before it is asked for a stream.
	response, err = http.ReadResponse(bufio.NewReader(io.LimitReader(conn, 16<<10)), request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		return nil, fmt.Errorf("the API server answers %s", response.Status)
	}
	u.conn = conn
	return response, nil
}

func (d *Dialer) connect(ctx context.Context) (net.Conn, error) {
	address := d.host.Host
	if d.host.Port() == "" {
		port := "80"
		if d.tls != nil {
			port = "443"
		}
		address = net.JoinHostPort(d.host.Hostname(), port)
	}
	if d.tls != nil {
		return (&tls.Dialer{Config: d.tls}).DialContext(ctx, "tcp", address)
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", address)
}

// Conn is a connection to a pod.
type Conn struct {
	conn    net.Conn
	streams httpstream.Connection
	opened  int
}

// Close ends the connection, even one that hangs.
func (c *Conn) Close() {
	c.conn.Close()
	c.streams.Close()
}

// Stream is a connection to a port of a pod. Its CloseWrite ends what is sent.
type Stream struct {
	httpstream.Stream
	failed httpstream.Stream
	conn   *Conn
	stop   func() bool
}

// Open connects to a port of the pod. The whole Conn ends with the context. After an error the Conn is of
// no use.
func (c *Conn) Open(ctx context.Context, port int) (*Stream, error) {
	s := &Stream{conn: c, stop: context.AfterFunc(ctx, func() { c.conn.Close() })}
	c.opened++
	headers := http.Header{}
	headers.Set(corev1.PortHeader, strconv.Itoa(port))
	headers.Set(corev1.PortForwardRequestIDHeader, strconv.Itoa(c.opened))
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	var err error
	if s.failed, err = c.streams.CreateStream(headers); err == nil {
		s.failed.Close() // nothing is sent
		headers.Set(corev1.StreamType, corev1.StreamTypeData)
		s.Stream, err = c.streams.CreateStream(headers)
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("open a stream: %w", err)
	}
	return s, nil
}

// CloseWrite ends what is sent. The answer can still be read.
func (s *Stream) CloseWrite() error { return s.Stream.Close() }

// Close ends the stream in both directions.
func (s *Stream) Close() error {
	s.stop()
	for _, stream := range []httpstream.Stream{s.Stream, s.failed} {
		if stream != nil {
			s.conn.streams.RemoveStreams(stream)
			stream.Reset()
		}
	}
	return nil
}
