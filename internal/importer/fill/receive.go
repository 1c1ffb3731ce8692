package fill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/importer/disk"
	"github.com/kubeqemu/kubeqemu/internal/importer/image"
)

const (
	// answerTimeout bounds the sending of an answer.
	answerTimeout = 10 * time.Second
	// lingerTime is what the sender of an image that is refused has for reading why.
	lingerTime = 500 * time.Millisecond
)

// errBroken is wrapped by the error about an image that did not come to its end.
var errBroken = errors.New("the upload broke off")

// uploads hands images from HTTP requests over to the import, one at a time.
type uploads struct {
	idle time.Duration
	sent chan *sentImage
	// ended is closed when the import takes no more.
	ended chan struct{}
	// busy has room for the one image that is being taken, or was taken and is not refused yet.
	busy chan struct{}
	once sync.Once
}

func newUploads(idle time.Duration) uploads {
	return uploads{idle: idle, sent: make(chan *sentImage), ended: make(chan struct{}), busy: make(chan struct{}, 1)}
}

// free makes room for another image.
func (u *uploads) free() { <-u.busy }

// close answers those that still wait.
func (u *uploads) close() { u.once.Do(func() { close(u.ended) }) }

// next waits for an image until ctx ends. The image must be answered.
func (u *uploads) next(ctx context.Context) (*sentImage, error) {
	select {
	case sent := <-u.sent:
		sent.follow(ctx)
		return sent, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// ServeHTTP takes an image. It answers when all of the image has been taken, or none of it will be.
func (u *uploads) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case u.busy <- struct{}{}:
	default:
		refuse(w, http.StatusConflict, "an image is being taken, or was taken, already")
		return
	}
	sent := &sentImage{body: r.Body, size: r.ContentLength, idle: u.idle, client: http.NewResponseController(w), result: make(chan error, 1)}
	_ = sent.client.SetWriteDeadline(time.Time{}) // an image takes longer than other requests
	select {
	case u.sent <- sent:
	case <-u.ended:
		u.free()
		refuse(w, http.StatusConflict, "the importer takes no image any more")
		return
	case <-r.Context().Done():
		u.free()
		return
	}
	err := <-sent.result
	_ = sent.client.SetWriteDeadline(time.Now().Add(answerTimeout))
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case errors.Is(err, context.Canceled):
		refuse(w, http.StatusServiceUnavailable, "the importer ends; send the image again")
	default:
		refuse(w, status(err), err.Error())
	}
}

// refuse answers, and gives the sender time to read the answer. The rest of the image is not read, so the end of
// the connection is a reset, which would take the answer away from a sender that still sends.
func refuse(w http.ResponseWriter, status int, reason string) {
	h := w.Header()
	h.Set("Connection", "close")
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(len(reason)))
	w.WriteHeader(status)
	_, _ = io.WriteString(w, reason)
	if http.NewResponseController(w).Flush() == nil {
		<-time.After(lingerTime)
	}
}

// status says whose fault an error is.
func status(err error) int {
	for _, theirs := range []error{errBroken, image.ErrUnusable, disk.ErrLarger, disk.ErrFull, errNoRoomBeside} {
		if errors.Is(err, theirs) {
			return http.StatusBadRequest
		}
	}
	return http.StatusInternalServerError
}

// sentImage is an image as it comes.
type sentImage struct {
	body io.Reader
	// size is in bytes, or negative if the sender does not say it.
	size   int64
	read   int64
	idle   time.Duration
	client *http.ResponseController
	// ctx ends the reading.
	ctx context.Context
	// stop ends what watches ctx.
	stop   func() bool
	result chan error
	once   sync.Once
}

// follow ends the reading when ctx ends.
func (s *sentImage) follow(ctx context.Context) {
	s.ctx = ctx
	s.stop = context.AfterFunc(ctx, func() { _ = s.client.SetReadDeadline(time.Unix(1, 0)) })
}

// answer tells the sender how it went, once. Nothing is read afterwards.
func (s *sentImage) answer(err error) {
	s.once.Do(func() {
		s.stop()
		s.result <- err
	})
}

// Read reads what comes. After the end of ctx, and when nothing comes for a time, it fails.
func (s *sentImage) Read(p []byte) (int, error) {
	_ = s.client.SetReadDeadline(time.Now().Add(s.idle)) // the connection may have none, in tests
	if s.ctx.Err() != nil {
		return 0, s.ctx.Err()
	}
	n, err := s.body.Read(p)
	s.read += int64(n)
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return n, err
	case s.ctx.Err() != nil:
		return n, s.ctx.Err()
	}
	return n, fmt.Errorf("%w after %d bytes; send the image again", errBroken, s.read)
}
