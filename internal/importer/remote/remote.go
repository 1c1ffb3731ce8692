// Package remote reads a file of a web server, by ranges where the server has them and in one pass
// where it has not. What the server says is not believed: each answer must be about exactly the bytes
// that were asked for, of a file of the same size and the same version, and a byte that is read again
// must be what it was.
//
// The file is read in blocks of 1 MiB, a few of which are kept. Reading that goes forward is read
// ahead in longer and longer ranges. A range is always read to its end, so a jump wastes nothing.
//
// After the first answer the requests go to the URL that gave it, not through the redirects again: a
// redirect may lead to another mirror each time, with another version of the file. If that URL
// refuses later on, as a signed URL does when its time is over, the way is looked for once more.
package remote

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// ErrChanged is wrapped by the error about a file that is no longer the file that it was. A reader
// that begins anew can have the new file.
var ErrChanged = errors.New("the file changed on the server")

// ErrVersions wraps ErrChanged: the file has the size that it had, and another ETag or time. Perhaps it is another file. Perhaps several servers behind one
// name have the same file, and each gives it an ETag or a time of its own. A reader that begins anew with Options.OneAnswer has the file in either case.
var ErrVersions = fmt.Errorf("%w: its ETag or its time is another", ErrChanged)

// ErrBroken is wrapped by the error about a stream that broke and cannot be taken up again: the server
// gives no ranges. A reader that begins anew can have the file.
var ErrBroken = errors.New("the connection broke, and the server cannot go on in the middle of the file")

// SizeError says that the file is larger than Options.MaxSize. Both are in bytes.
type SizeError struct{ Size, Most int64 }

func (e *SizeError) Error() string {
	return fmt.Sprintf("the file has %d bytes, and so large an image cannot be for this disk: %d bytes would be the most", e.Size, e.Most)
}

// Options are what a file is read with.
type Options struct {
	URL string
	// Headers are sent to the URL's host, to no other.
	Headers http.Header
	// User and Password are sent to the URL's host, to no other.
	User, Password string
	// Roots are the authorities that a server's certificate may be of. Nil means the system's.
	Roots *x509.CertPool
	// Addresses are those that a server may not have.
	Addresses Addresses
	// Dial makes the connections, TLS included, if it is set. Whoever sets it knows the server: the URL's
	// host, Roots and Addresses do not count, and a redirect is an error.
	Dial func(ctx context.Context) (net.Conn, error)
	// MaxSize is how many bytes the file may have.
	MaxSize int64
	// OneAnswer reads the whole file from one answer, and not by ranges: what one answer has is one version of the file.
	OneAnswer bool

	// Idle is how long a server may give nothing before the connection counts as broken.
	Idle time.Duration
	// OpenPatience is how long the first answer is waited for, and Patience how long a new byte is
	// waited for later on.
	OpenPatience, Patience time.Duration
	// FirstWait is the first wait between two tries. It doubles until it is MaxWait.
	FirstWait, MaxWait time.Duration
}

// Defaults gives the times that are 0 their values.
func (o *Options) Defaults() {
	for _, d := range []struct {
		time  *time.Duration
		value time.Duration
	}{
		{&o.Idle, time.Minute}, {&o.OpenPatience, 20 * time.Second}, {&o.Patience, 5 * time.Minute},
		{&o.FirstWait, 200 * time.Millisecond}, {&o.MaxWait, 15 * time.Second},
	} {
		if *d.time == 0 {
			*d.time = d.value
		}
	}
}

// File is a file of a web server.
type File struct {
	// Size is -1 if the server does not say it.
	Size int64
	// Validator tells two versions of the file apart. It is empty if the server gives none.
	Validator string
	// Strong: two versions never have the same Validator.
	Strong bool
	// Framed: the answer without a size says where it ends.
	Framed bool
	// Ranges: ReadAt works.
	Ranges bool
	// Head is the beginning of the file: a block, or the whole file.
	Head []byte

	client *client
	ctx    context.Context
	cancel context.CancelFunc
	// fetches are the goroutines that read ranges.
	fetches sync.WaitGroup
	cache   cache
	// rest is the answer after Head, if there are no ranges.
	rest io.ReadCloser
}

// Open asks for the beginning of the file. ctx ends all that is read.
func Open(ctx context.Context, options Options) (*File, error) {
	options.Defaults()
	c, err := newClient(options)
	if err != nil {
		return nil, err
	}
	f := &File{client: c}
	f.ctx, f.cancel = context.WithCancel(ctx)
	err = c.retry(f.ctx, options.OpenPatience, func() (bool, error) { return false, f.open() })
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open the source: %w", err)
	}
	f.cache.init(f.Size, func(run []*block) { f.fetches.Go(func() { f.fetch(run) }) })
	switch {
	case f.Ranges && f.Head == nil:
		err = f.readHead()
	case f.Ranges:
		f.cache.put(0, f.Head)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open the source: %w", err)
	}
	return f, nil
}

// Close ends all reading.
func (f *File) Close() {
	f.cancel()
	f.fetches.Wait()
	if f.rest != nil {
		f.rest.Close()
	}
	f.client.transport.CloseIdleConnections()
}

// Location is the URL without what may be secret in it. In a URL that cannot be used, a password may be
// anywhere.
func Location(address string) string {
	u, err := url.Parse(address)
	if err != nil || checkURL(u) != nil {
		return "(a URL that cannot be read)"
	}
	return location(u)
}

func location(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// open makes the first request.
func (f *File) open() error {
	asked := span{0, blockSize}
	if f.client.options.OneAnswer {
		asked = span{}
	}
	answer, err := f.client.get(f.ctx, f.client.origin, asked)
	if err != nil {
		return err
	}
	switch {
	case answer.StatusCode == http.StatusPartialContent && asked != (span{}):
		defer answer.close()
		err = f.openRanges(answer)
	case answer.StatusCode == http.StatusOK:
		if err = f.openStream(answer); err != nil {
			answer.close()
		}
	case answer.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		answer.close()
		return final(errors.New("the file is empty"))
	default:
		answer.close()
		return answer.refusal()
	}
	return err
}

func (f *File) openRanges(a *answer) error {
	got, size, err := contentRange(a.Header)
	if err != nil {
		return final(err)
	}
	if got != (span{0, min(size, blockSize)}) {
		return final(errors.New("the server answers with another range than it was asked for"))
	}
	if err := f.known(a, size); err != nil {
		return err
	}
	head := make([]byte, got.to)
	n, err := io.ReadFull(a.body, head)
	if err != nil && n == 0 {
		return fmt.Errorf("read the beginning: %w", err)
	}
	if err == nil {
		if err := a.ended(); err != nil {
			return err
		}
		f.Head = head
	} // or else readHead reads the beginning, and goes on after each broken connection
	// Nothing of an answer that is asked for again is kept: the next one may be another server's.
	f.client.settled, f.Ranges = a.at, true
	return nil
}

// readHead reads the beginning after the connection of the first answer broke.
func (f *File) readHead() error {
	head := make([]byte, min(f.Size, blockSize))
	if _, err := f.ReadAt(head, 0); err != nil {
		return err
	}
	f.Head = head
	return nil
}

func (f *File) openStream(a *answer) error {
	if err := f.known(a, a.ContentLength); err != nil {
		return err
	}
	head := make([]byte, blockSize)
	n, err := io.ReadFull(a.body, head)
	if err != nil && (n == 0 || !errors.Is(err, io.EOF) && !(errors.Is(err, io.ErrUnexpectedEOF) && (f.Size < 0 || f.Size == int64(n)))) {
		return fmt.Errorf("read the beginning: %w", err)
	}
	f.Head, f.rest = head[:n], a
	return nil
}

// known takes the size and the validator of the first answer.
func (f *File) known(a *answer, size int64) error {
	switch {
	case size == 0:
		return final(errors.New("the file is empty"))
	case size > f.client.options.MaxSize:
		return final(&SizeError{size, f.client.options.MaxSize})
	}
	f.Size, f.Validator, f.Strong = size, validator(a.Header), strong(a.Header)
	f.Framed = slices.Contains(a.TransferEncoding, "chunked")
	return nil
}

// validator is what tells two versions of a file apart.
func validator(h http.Header) string {
	const most = 1 << 10
	for _, name := range []string{"Etag", "Last-Modified"} {
		if v := h.Get(name); v != "" && len(v) < most {
			return name + " " + v
		}
	}
	return ""
}

// strong says whether the validator tells apart any two versions: an ETag that is not weak, or a time that
// is so long ago that the file cannot change twice within it (RFC 9110, 8.8.2.2).
func strong(h http.Header) bool {
	if tag := h.Get("Etag"); tag != "" {
		return !strings.HasPrefix(tag, "W/")
	}
	modified, err := http.ParseTime(h.Get("Last-Modified"))
	date, err2 := http.ParseTime(h.Get("Date"))
	return err == nil && err2 == nil && date.Sub(modified) >= time.Minute
}

// Stream reads the whole file once, from its beginning.
func (f *File) Stream() io.Reader {
	if f.Ranges {
		return io.NewSectionReader(f, 0, f.Size)
	}
	return io.MultiReader(bytes.NewReader(f.Head), &stream{f: f, left: f.Size - int64(len(f.Head))})
}

// stream is the rest of an answer without ranges.
type stream struct {
	f    *File
	left int64 // negative if the size is not known
}

func (s *stream) Read(p []byte) (int, error) {
	n, err := s.f.rest.Read(p)
	if s.f.Size >= 0 {
		s.left -= int64(n)
	}
	switch {
	case err == nil:
		return n, nil
	case s.f.ctx.Err() != nil:
		return n, s.f.ctx.Err()
	case !errors.Is(err, io.EOF), s.f.Size >= 0 && s.left > 0:
		return n, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	return n, io.EOF
}
