package filler

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
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

	"github.com/kubeqemu/kubeqemu/internal/importer"
)

// forwardProtocol is the protocol of pods/portforward.
const forwardProtocol = "portforward.k8s.io"

// maxAnswer bounds the head and the body of an importer's answer, each. Whoever may make pods in
// a namespace may put a pod of their own in an importer's place.
const maxAnswer = 4 << 10

// Forwarder connects to importers through the API server's pods/portforward. client-go's own dialer
// would wait without end for an API server that does not answer.
type Forwarder struct {
	config *rest.Config
	tls    *tls.Config
	host   *url.URL
}

// NewForwarder makes a Forwarder for the API server of a configuration.
func NewForwarder(config *rest.Config) (*Forwarder, error) {
	host, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	f := &Forwarder{config: config, host: host}
	if host.Scheme == "https" {
		if f.tls, err = rest.TLSConfigFor(config); err != nil {
			return nil, fmt.Errorf("set up TLS to the API server: %w", err)
		}
		if f.tls == nil {
			f.tls = &tls.Config{}
		}
		f.tls = f.tls.Clone()
		f.tls.NextProtos = []string{"http/1.1"}
		if f.tls.ServerName == "" {
			f.tls.ServerName = host.Hostname()
		}
	}
	return f, nil
}

// Dial connects to the importer in a pod.
func (f *Forwarder) Dial(ctx context.Context, pod types.NamespacedName) (Connection, error) {
	upgrade := &upgrade{forwarder: f}
	// The wrapping adds the credentials.
	client, err := rest.HTTPWrappersForConfig(f.config, upgrade)
	if err != nil {
		return nil, fmt.Errorf("set up the forwarding: %w", err)
	}
	at := f.host.JoinPath("api", "v1", "namespaces", pod.Namespace, "pods", pod.Name, "portforward")
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, at.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("forward to pod %s: %w", pod.Name, err)
	}
	request.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	request.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	request.Header.Set(httpstream.HeaderProtocolVersion, forwardProtocol)
	if _, err := client.RoundTrip(request); err != nil {
		return nil, fmt.Errorf("forward to pod %s: %w", pod.Name, err)
	}
	streams, err := spdy.NewClientConnection(&bounded{Conn: upgrade.conn, left: maxReceived})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("forward to pod %s: %w", pod.Name, err), upgrade.conn.Close())
	}
	return &forward{conn: upgrade.conn, streams: streams}, nil
}

const (
	// maxReceived bounds what is received on a connection, which then ends: an answer is some 400 bytes.
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
	forwarder *Forwarder
	conn      net.Conn
}

func (u *upgrade) RoundTrip(request *http.Request) (response *http.Response, err error) {
	conn, err := u.forwarder.connect(request.Context())
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

func (f *Forwarder) connect(ctx context.Context) (net.Conn, error) {
	address := f.host.Host
	if f.host.Port() == "" {
		port := "80"
		if f.tls != nil {
			port = "443"
		}
		address = net.JoinHostPort(f.host.Hostname(), port)
	}
	if f.tls != nil {
		return (&tls.Dialer{Config: f.tls}).DialContext(ctx, "tcp", address)
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", address)
}

// forward is a Connection over pods/portforward.
type forward struct {
	conn    net.Conn
	streams httpstream.Connection
	asked   int
}

// Close ends the connection, even one that hangs.
func (f *forward) Close() {
	f.conn.Close()
	f.streams.Close()
}

// Ask asks for the progress, over a pair of streams of its own. After an error the connection is of
// no use.
func (f *forward) Ask(ctx context.Context) (importer.Progress, error) {
	stop := context.AfterFunc(ctx, func() { f.conn.Close() })
	defer stop()
	f.asked++
	headers := http.Header{}
	headers.Set(corev1.PortHeader, strconv.Itoa(importer.Port))
	headers.Set(corev1.PortForwardRequestIDHeader, strconv.Itoa(f.asked))
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	failed, err := f.streams.CreateStream(headers)
	if err != nil {
		return importer.Progress{}, fmt.Errorf("open a stream: %w", err)
	}
	defer f.end(failed)
	failed.Close() // nothing is sent
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := f.streams.CreateStream(headers)
	if err != nil {
		return importer.Progress{}, fmt.Errorf("open a stream: %w", err)
	}
	defer f.end(data)
	return ask(data)
}

// end ends a stream in both directions.
func (f *forward) end(stream httpstream.Stream) {
	f.streams.RemoveStreams(stream)
	stream.Reset()
}

// ask sends one request and reads one answer, both bounded.
func ask(stream io.ReadWriter) (progress importer.Progress, err error) {
	if _, err = fmt.Fprintf(stream, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", importer.ProgressPath); err != nil {
		return progress, fmt.Errorf("ask for the progress: %w", err)
	}
	response, err := http.ReadResponse(bufio.NewReader(io.LimitReader(stream, 2*maxAnswer)), nil)
	if err != nil {
		return progress, fmt.Errorf("read the progress: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return progress, fmt.Errorf("read the progress: the importer answers %s", response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return progress, fmt.Errorf("read the progress: %w", err)
	}
	if err = json.Unmarshal(body, &progress); err != nil {
		return progress, fmt.Errorf("read the progress: %w", err)
	}
	return progress, nil
}
