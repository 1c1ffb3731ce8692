package remote

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	maxRedirects   = 10
	maxHeaderBytes = 64 << 10
)

// span is a range of bytes: from the first to before the last.
type span struct{ from, to int64 }

func (s span) String() string { return fmt.Sprintf("bytes=%d-%d", s.from, s.to-1) }

// contentRange reads what an answer with status 206 says of its range.
func contentRange(h http.Header) (span, int64, error) {
	values := h.Values("Content-Range")
	if len(values) != 1 {
		return span{}, 0, errors.New("the server gives a part of the file and does not say which")
	}
	text, ok := strings.CutPrefix(values[0], "bytes ")
	bounds, total, ok2 := strings.Cut(text, "/")
	from, to, ok3 := strings.Cut(bounds, "-")
	if !ok || !ok2 || !ok3 {
		return span{}, 0, errors.New("the server's Content-Range cannot be read")
	}
	var numbers [3]int64
	for i, text := range []string{from, to, total} {
		n, err := strconv.ParseUint(text, 10, 62)
		if err != nil {
			return span{}, 0, errors.New("the server's Content-Range cannot be read, or does not say how large the file is")
		}
		numbers[i] = int64(n)
	}
	got := span{numbers[0], numbers[1] + 1}
	if got.from >= got.to || got.to > numbers[2] {
		return span{}, 0, errors.New("the server's Content-Range contradicts itself")
	}
	return got, numbers[2], nil
}

// client makes requests of one file.
type client struct {
	options   Options
	transport *http.Transport
	// origin is the URL that was asked for, and settled the URL that answered.
	origin, settled *url.URL
}

func newClient(o Options) (*client, error) {
	origin, err := url.Parse(o.URL)
	if err != nil {
		// url.Error has the whole URL in it, with its secrets.
		return nil, errors.New("the URL cannot be read")
	}
	if err := checkURL(origin); err != nil {
		return nil, err
	}
	if u := origin.User; u != nil && o.User == "" {
		o.User = u.Username()
		o.Password, _ = u.Password()
	}
	if o.Dial != nil {
		return &client{options: o, origin: origin, transport: transportOver(o)}, nil
	}
	dialer := &net.Dialer{Timeout: o.Idle, KeepAlive: 30 * time.Second, Control: o.Addresses.control}
	return &client{options: o, origin: origin, transport: &http.Transport{
		// No proxy of the environment: the addresses that are judged are those of the source.
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{RootCAs: o.Roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    o.Idle,
		ResponseHeaderTimeout:  o.Idle,
		MaxResponseHeaderBytes: maxHeaderBytes,
		MaxConnsPerHost:        4,
		IdleConnTimeout:        time.Minute,
		DisableCompression:     true,
	}}, nil
}

// transportOver makes requests over the connections of Dial.
func transportOver(o Options) *http.Transport {
	return &http.Transport{
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := o.Dial(ctx)
			if err != nil {
				return nil, &dialError{err}
			}
			return conn, nil
		},
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return nil, &dialError{errors.New("it is asked by TLS alone")}
		},
		ResponseHeaderTimeout:  o.Idle,
		MaxResponseHeaderBytes: maxHeaderBytes,
		MaxConnsPerHost:        4,
		IdleConnTimeout:        time.Minute,
		DisableCompression:     true,
	}
}

// dialError is an error of Options.Dial.
type dialError struct{ error }

func (e *dialError) Unwrap() error { return e.error }

// checkURL says whether a URL can be a source. What stands before the first colon may be a user, so
// another scheme is not told.
func checkURL(u *url.URL) error {
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return errors.New("a source's URL begins with http:// or https://, and this one does not")
	case u.Hostname() == "":
		return errors.New("the URL names no host")
	}
	return nil
}

// answer is a server's answer. It must be closed.
type answer struct {
	*http.Response
	// at is the URL that gave it.
	at   *url.URL
	body io.Reader
	end  func()
}

func (a *answer) close()                     { a.end(); a.Body.Close() }
func (a *answer) Close() error               { a.close(); return nil }
func (a *answer) Read(p []byte) (int, error) { return a.body.Read(p) }

// refusal is the error about a status that is none of success.
func (a *answer) refusal() error {
	err := &statusError{a.StatusCode}
	switch {
	case a.StatusCode >= 500, a.StatusCode == http.StatusTooManyRequests, a.StatusCode == http.StatusRequestTimeout:
		return err
	}
	return final(err)
}

// statusError is a status that is none of success. Nothing else of the answer is told: who may make a
// disk could read with it what only the pod can reach.
type statusError struct{ code int }

func (e *statusError) Error() string {
	hint := ""
	switch e.code {
	case http.StatusUnauthorized, http.StatusForbidden:
		hint = ": see to the credentials"
	case http.StatusNotFound, http.StatusGone:
		hint = ": see to the URL"
	}
	return fmt.Sprintf("the server answers with status %d%s", e.code, hint)
}

// ended says whether nothing comes after what was read.
func (a *answer) ended() error {
	var more [1]byte
	if n, _ := io.ReadFull(a.body, more[:]); n > 0 {
		return final(errors.New("the server sends more than it was asked for"))
	}
	return nil
}

// get asks for a range of the file at a URL, and follows redirects.
func (c *client) get(ctx context.Context, at *url.URL, s span) (*answer, error) {
	for range maxRedirects + 1 {
		a, err := c.once(ctx, at, s)
		if err != nil {
			return nil, err
		}
		switch a.StatusCode {
		case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
			a.close()
			if c.options.Dial != nil {
				return nil, final(errors.New("the server redirects, which it may not"))
			}
			if at, err = redirect(at, a.Header.Get("Location")); err != nil {
				return nil, final(err)
			}
		default:
			return a, nil
		}
	}
	return nil, final(fmt.Errorf("the server redirects more than %d times", maxRedirects))
}

// redirect is where a redirect leads.
func redirect(from *url.URL, to string) (*url.URL, error) {
	next, err := from.Parse(to)
	if err != nil || to == "" {
		return nil, errors.New("the server redirects to what is no URL")
	}
	if err := checkURL(next); err != nil {
		return nil, fmt.Errorf("the server redirects: %w", err)
	}
	if from.Scheme == "https" && next.Scheme == "http" {
		return nil, errors.New("the server redirects from https to http")
	}
	next.User = nil
	return next, nil
}

// once makes one request. The answer's body ends with an error when the server gives nothing for the
// time Idle.
func (c *client) once(ctx context.Context, at *url.URL, s span) (*answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		cancel(nil)
		return nil, final(errors.New("the URL cannot be read"))
	}
	c.header(request, s)
	idle := time.AfterFunc(c.options.Idle, func() { cancel(fmt.Errorf("the server gave nothing for %s", c.options.Idle)) })
	response, err := c.transport.RoundTrip(request)
	if err != nil {
		idle.Stop()
		err = explain(ctx, err)
		cancel(nil)
		return nil, err
	}
	body := &watched{ctx: ctx, body: response.Body, idle: idle, time: c.options.Idle}
	return &answer{Response: response, at: at, body: body, end: func() { idle.Stop(); cancel(nil) }}, nil
}

func (c *client) header(request *http.Request, s span) {
	if s != (span{}) {
		request.Header.Set("Range", s.String())
	}
	request.Header.Set("Accept-Encoding", "identity")
	request.Header.Set("User-Agent", "virt-importer")
	if !sameHost(c.origin, request.URL) {
		return
	}
	if c.options.User != "" {
		request.SetBasicAuth(c.options.User, c.options.Password)
	}
	for name, values := range c.options.Headers {
		request.Header[name] = values
		if name == "Host" && len(values) == 1 {
			request.Host = values[0]
		}
	}
}

// sameHost says whether secrets for one URL may go to another: to the same port, or from port 80 to
// TLS at port 443.
func sameHost(a, b *url.URL) bool {
	if !strings.EqualFold(a.Hostname(), b.Hostname()) || a.Scheme == "https" && b.Scheme != "https" {
		return false
	}
	return port(a) == port(b) || port(a) == "80" && port(b) == "443" && b.Scheme == "https"
}

func port(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}

// explain makes of a failed request what can be told: without the URL, and with what to do.
func explain(ctx context.Context, err error) error {
	var verification *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var dial *dialError
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, ErrAddress):
		// net.OpError would tell which address the name has.
		return final(unwrapTo(err, ErrAddress))
	case errors.As(err, &dial):
		return fmt.Errorf("ask the server: %w", dial.error)
	case errors.As(err, &verification):
		return final(fmt.Errorf("the server's certificate is not trusted: put its authority into the ConfigMap that certConfigMap names: %w", verification.Err))
	case errors.As(err, &record):
		return final(errors.New("the server does not speak TLS: is the URL's scheme http?"))
	}
	var network net.Error
	var unknown x509.UnknownAuthorityError
	if errors.As(err, &network) || errors.As(err, &unknown) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("ask the server: %w", err)
	}
	// The error would quote what the server said, and the server may be one that the user cannot reach.
	return errors.New("ask the server: the answer is not HTTP, or its headers are too long")
}

// unwrapTo returns the error just above target in the chain of err.
func unwrapTo(err, target error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil || next == target {
			return err
		}
		err = next
	}
}

// watched is a body that ends when nothing comes for a time.
type watched struct {
	ctx  context.Context
	body io.Reader
	idle *time.Timer
	time time.Duration
}

func (w *watched) Read(p []byte) (int, error) {
	w.idle.Reset(w.time)
	n, err := w.body.Read(p)
	w.idle.Stop() // a reader that takes its time is not the server's fault
	if err != nil && !errors.Is(err, io.EOF) && w.ctx.Err() != nil {
		err = context.Cause(w.ctx)
	}
	return n, err
}
