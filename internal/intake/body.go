package intake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	// bodyTimeout bounds the reading of a whole body: a client has its body at hand.
	bodyTimeout = 10 * time.Second
	// perBody is what a body takes beside its bytes, in bytes.
	perBody = 4 << 10
	// firstChunk, in bytes, is taken for a body of unknown length, and doubled as the body
	// arrives.
	firstChunk = 16 << 10
)

// Bodies reads request bodies within a budget of bytes, which are taken before they are read.
type Bodies struct {
	Budget Budget
	// Timeout is bodyTimeout, except in tests.
	Timeout time.Duration
}

// NewBodies makes a budget of so many bytes.
func NewBodies(bytes int64) *Bodies {
	return &Bodies{Budget: Budget{Size: bytes, Renews: true}, Timeout: bodyTimeout}
}

// TooLongError says that a body is longer than it may be.
type TooLongError struct{ Most int64 }

func (e *TooLongError) Error() string { return fmt.Sprintf("the body is longer than %d bytes", e.Most) }

// ErrGaveWay says that a body was not whole when another peer, which had sent
// less, needed the room.
var ErrGaveWay = errors.New("the body came too slowly, and others need the room")

// Read reads a request's body, of at most so many bytes, under a key of the budget. They stay
// in the budget until release is called. An error that wraps ErrFull, or is ErrGaveWay, is not
// the request's fault. After an error the connection is not used again.
func (b *Bodies) Read(w http.ResponseWriter, r *http.Request, key string, most int64) (text []byte, release func(), err error) {
	defer func() {
		if err != nil {
			w.Header().Set("Connection", "close")
		}
	}()
	if r.ContentLength > most {
		return nil, nil, &TooLongError{most}
	}
	client := http.NewResponseController(w)
	if err := deadline(client, time.Now().Add(b.Timeout)); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), b.Timeout)
	defer cancel()
	giveWay := func() {
		cancel()
		_ = deadline(client, time.Unix(1, 0))
	}
	hold, err := b.Budget.Take(ctx, key, perBody+first(r.ContentLength, most), giveWay)
	if err != nil {
		return nil, nil, fmt.Errorf("read the body: %w", err)
	}
	text, err = b.read(ctx, hold, r, most)
	if !hold.Keep() {
		err = ErrGaveWay
	}
	if err == nil {
		// From here on the request waits for others, not for its client.
		err = deadline(client, time.Time{})
	}
	if err != nil {
		hold.Release()
		return nil, nil, err
	}
	return text, hold.Release, nil
}

// first is how many bytes are taken for a body at first.
func first(length, most int64) int64 {
	if length < 0 {
		return min(firstChunk, most+1)
	}
	return length
}

func (b *Bodies) read(ctx context.Context, hold *Hold, r *http.Request, most int64) ([]byte, error) {
	text := make([]byte, first(r.ContentLength, most))
	if r.ContentLength >= 0 {
		_, err := io.ReadFull(r.Body, text)
		return text, err
	}
	for have := 0; ; {
		n, err := io.ReadFull(r.Body, text[have:])
		switch have += n; {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return text[:have], nil
		case err != nil:
			return nil, err
		case int64(have) > most:
			return nil, &TooLongError{most}
		}
		more := min(int64(have), most+1-int64(have))
		if err := hold.Grow(ctx, more); err != nil {
			return nil, fmt.Errorf("read the body: %w", err)
		}
		text = append(text, make([]byte, more)...)
	}
}

// deadline bounds how long reading may take. A client without a connection has no deadline.
func deadline(client *http.ResponseController, until time.Time) error {
	if err := client.SetReadDeadline(until); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("bound the time of a body: %w", err)
	}
	return nil
}
