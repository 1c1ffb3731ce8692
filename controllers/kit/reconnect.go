package kit

import (
	"errors"
	"net"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

// redial is the time between two attempts to connect.
const redial = time.Second

// Reconnect has the config's clients dial again for a watch each second while the API server
// is away. A reflector alone backs off to one attempt in 30 to 60 s (client-go's
// tools/cache/reflector.go), and the status of every VMI would stay old for as long after the
// API server's return. Any answer ends the dialing, even an error: the reflector itself backs
// off from errors.
func Reconnect(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &transport{next: next, redial: redial} })
}

type transport struct {
	next   http.RoundTripper
	redial time.Duration
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	for {
		response, err := t.next.RoundTrip(r)
		if err == nil || !isWatch(r) || !isDial(err) {
			return response, err
		}
		timer := time.NewTimer(t.redial)
		select {
		case <-timer.C:
		case <-r.Context().Done():
			timer.Stop()
			return nil, err
		}
	}
}

// WrappedRoundTripper lets client-go find the wrapped transport.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

func isWatch(r *http.Request) bool {
	watch := r.URL.Query().Get("watch")
	return r.Method == http.MethodGet && (watch == "true" || watch == "1")
}

// isDial says whether the error came before the request was sent. Only such a
// request is repeated here.
func isDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
