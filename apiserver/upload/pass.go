package upload

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/internal/portforward"
)

// Dial connects to the importer in a pod. The connection is made before the context ends, or not at all,
// and lasts until it is closed. Closing ends even what hangs.
type Dial func(ctx context.Context, pod types.NamespacedName) (io.ReadWriteCloser, error)

// Forward returns a Dial that connects to importers by pods/portforward.
func Forward(dialer *portforward.Dialer) Dial {
	return func(ctx context.Context, pod types.NamespacedName) (io.ReadWriteCloser, error) {
		conn, err := dialer.Dial(ctx, pod)
		if err != nil {
			return nil, err
		}
		stop := context.AfterFunc(ctx, conn.Close)
		stream, err := conn.Open(context.WithoutCancel(ctx), importer.Port)
		if err == nil && !stop() {
			err = ctx.Err()
		}
		if err != nil {
			conn.Close()
			return nil, err
		}
		return forwarded{stream, conn}, nil
	}
}

// forwarded is a stream that is alone on its connection.
type forwarded struct {
	*portforward.Stream
	conn *portforward.Conn
}

func (f forwarded) Close() error {
	f.conn.Close()
	return nil
}

const (
	// chunk, in bytes, is how much of an image is copied at once.
	chunk = 32 << 10
	// maxAnswer bounds the head and the body of an importer's answer together, in bytes, and maxReason what is
	// passed on of it. A tenant may make a pod in an importer's place.
	maxAnswer = 8 << 10
	maxReason = 1 << 10
)

// answer is an importer's answer, or why there is none.
type answer struct {
	code   int
	reason string
	err    error
}

// pass sends an image, of so many bytes, or of an unknown length (-1), to an importer, and returns nil when the importer has taken the whole image.
// At any time either side may stop: the importer answers before it has read all of an image that it
// refuses.
func (s *Server) pass(ctx context.Context, image *body, length int64, pod types.NamespacedName) error {
	dialing, cancel := context.WithTimeout(ctx, s.bounds.dial)
	stream, err := s.Dial(dialing, pod)
	cancel()
	if err != nil {
		s.Log.Info("cannot connect to an importer", "pod", pod.String(), "reason", err.Error())
		return refusal{http.StatusServiceUnavailable, "the importer pod " + pod.Name + " cannot be reached: try again"}
	}
	answered, sent := make(chan answer, 1), make(chan error, 1)
	var both sync.WaitGroup
	both.Go(func() { answered <- hear(stream) })
	both.Go(func() { sent <- send(steady{stream, s.bounds.importer}, image, length) })
	said, err := s.await(ctx, answered, sent, image)
	// The sender ends when it writes. It may wait for the client, too. Some time later its reading is ended: a body of
	// unknown length cannot be read on after that (linger).
	stream.Close()
	ending := time.AfterFunc(image.grace, image.end)
	both.Wait()
	if !ending.Stop() {
		image.end() // before anybody else sets a deadline
	}
	if err != nil {
		return err
	}
	return said.verdict()
}

// await waits for the importer's answer, with an end whatever the two sides do.
func (s *Server) await(ctx context.Context, answered <-chan answer, sent <-chan error, image *body) (answer, error) {
	select {
	case said := <-answered:
		return said, nil
	case <-ctx.Done():
		return answer{}, refusal{http.StatusServiceUnavailable, "the upload was ended"}
	case err := <-sent:
		left := s.bounds.answer
		if err != nil {
			if broken := image.failure(); broken != nil {
				return answer{}, refusal{http.StatusBadRequest, fmt.Sprintf("the image broke off: %v", broken)}
			}
			left = s.bounds.lastWord
		}
		timer := time.NewTimer(left)
		defer timer.Stop()
		select {
		case said := <-answered:
			return said, nil
		case <-ctx.Done():
			return answer{}, refusal{http.StatusServiceUnavailable, "the upload was ended"}
		case <-timer.C:
			return answer{}, refusal{http.StatusServiceUnavailable, "the importer does not say whether it has taken the image"}
		}
	}
}

// send writes the request. Of the client's own nothing goes along but the image: a pod in the importer's place must
// not see the token.
func send(to io.Writer, image io.Reader, length int64) error {
	request, err := http.NewRequest(http.MethodPut, "http://localhost"+importer.UploadPath, io.NopCloser(image))
	if err != nil {
		return fmt.Errorf("send the image: %w", err)
	}
	request.ContentLength, request.Close = length, true
	request.Header.Set("User-Agent", "virt-api")
	request.Header.Set("Content-Type", "application/octet-stream")
	buffered := bufio.NewWriterSize(to, chunk)
	if err := request.Write(buffered); err != nil {
		return fmt.Errorf("send the image: %w", err)
	}
	if err := buffered.Flush(); err != nil {
		return fmt.Errorf("send the image: %w", err)
	}
	return nil
}

// hear reads the answer, bounded.
func hear(from io.Reader) answer {
	reader := bufio.NewReader(io.LimitReader(from, maxAnswer))
	for {
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			return answer{err: err}
		}
		if response.StatusCode >= 100 && response.StatusCode < 200 {
			continue // the answer itself is to come
		}
		// The reason may be cut off, and the code counts.
		text, _ := io.ReadAll(io.LimitReader(response.Body, maxReason))
		response.Body.Close()
		return answer{code: response.StatusCode, reason: readable(string(text))}
	}
}

// verdict is the answer in the client's terms.
func (a answer) verdict() error {
	switch {
	case a.err != nil:
		return refusal{http.StatusServiceUnavailable, "the importer ended the connection without an answer: try again, or look at its log"}
	case a.code == http.StatusNoContent:
		return nil
	case a.reason == "":
		return refusal{http.StatusBadRequest, fmt.Sprintf("the importer refuses the image: %d %s", a.code, http.StatusText(a.code))}
	}
	return refusal{http.StatusBadRequest, "the importer refuses the image: " + a.reason}
}

// readable keeps of a stranger's text what a terminal may show.
func readable(text string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "")))
}

// body reads a client's image, with a deadline of its own for each read: net/http's deadline for a whole body
// is for small ones.
type body struct {
	from io.Reader
	// deadline bounds the reads that are waiting, and those to come.
	deadline func(time.Time) error
	patience time.Duration
	// grace is how long a read may still wait when the upload is over.
	grace time.Duration

	mu     sync.Mutex
	ended  bool
	failed error
}

var errEnded = errors.New("the upload is over")

func (b *body) Read(p []byte) (int, error) {
	if err := b.arm(); err != nil {
		return 0, err
	}
	n, err := b.from.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.ended:
	case err == io.EOF:
		// Now net/http waits for the end of the connection, which it would take a deadline's for.
		_ = b.deadline(time.Time{})
	case err != nil && b.failed == nil:
		b.failed = err
	}
	return n, err
}

// arm sets the deadline of the next read, unless the upload is over.
func (b *body) arm() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return errEnded
	}
	if err := b.deadline(time.Now().Add(b.patience)); err != nil {
		return fmt.Errorf("bound the time of an image: %w", err)
	}
	return nil
}

// end ends a read that waits, and all that come.
func (b *body) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.ended {
		b.ended = true
		_ = b.deadline(time.Unix(1, 0))
	}
}

// failure is why the client's image broke off, or nil.
func (b *body) failure() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failed
}

// steady closes the connection to an importer that takes nothing for too long.
type steady struct {
	to       io.WriteCloser
	patience time.Duration
}

func (s steady) Write(p []byte) (int, error) {
	timer := time.AfterFunc(s.patience, func() { s.to.Close() })
	defer timer.Stop()
	return s.to.Write(p)
}
