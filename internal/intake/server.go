package intake

import (
	"context"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
)

const (
	headerTimeout = 10 * time.Second
	readTimeout   = 30 * time.Second
	writeTimeout  = 3 * time.Minute // longer than any answer is waited for
	idleTimeout   = 2 * time.Minute
	// maxKnownHead is for known peers: of a user who is in a thousand groups, the
	// API server says so in the head.
	maxKnownHead = 64 << 10
)

// Server makes a server for a Listener. It speaks HTTP/1.1 alone: a connection of
// HTTP/2 has as many requests at once as its peer likes, and none of their bodies
// has a deadline of its own.
func Server(handler http.Handler, to logr.Logger) *http.Server {
	only := new(http.Protocols)
	only.SetHTTP1(true)
	return &http.Server{
		Handler: patient(handler), Protocols: only,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxKnownHead, ErrorLog: log.New(lines{to.V(1)}, "", 0),
		ConnState: func(conn net.Conn, state http.ConnState) {
			if c := of(conn); c != nil {
				c.progress(state)
			}
		},
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, of(conn))
		},
	}
}

// patient has the time for reading a request end where it has no body: an answer
// may take longer, and net/http would take that time's end for the peer's.
func patient(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			_ = deadline(http.NewResponseController(w), time.Time{})
		}
		handler.ServeHTTP(w, r)
	})
}

// lines has net/http say what it has to say, such as of peers that do not get
// through the handshake, where it is seldom wanted.
type lines struct{ to logr.Logger }

func (l lines) Write(text []byte) (int, error) {
	l.to.Info(strings.TrimSpace(string(text)))
	return len(text), nil
}
