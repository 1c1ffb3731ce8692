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
	// maxKnownHead, in bytes, is for known peers: the API server writes a user's groups into
	// the head, and there may be a thousand.
	maxKnownHead = 64 << 10
)

// Server makes a server for a Listener. It speaks HTTP/1.1 alone: over a connection of HTTP/2,
// a peer may send any number of requests at once, and none of their bodies has a deadline of
// its own.
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

// patient removes the read deadline of a request without a body. The answer may take longer than that deadline, and
// net/http would then believe that the peer has closed the connection.
func patient(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			_ = deadline(http.NewResponseController(w), time.Time{})
		}
		handler.ServeHTTP(w, r)
	})
}

// lines logs net/http's messages, such as handshakes that fail, at a level that is seldom on.
type lines struct{ to logr.Logger }

func (l lines) Write(text []byte) (int, error) {
	l.to.Info(strings.TrimSpace(string(text)))
	return len(text), nil
}
