package subresources

import (
	"fmt"
	"net/http"

	"github.com/kubeqemu/kubeqemu/apiserver/callers"
	"github.com/kubeqemu/kubeqemu/internal/intake"
)

// limits bounds the requests that tenants have open at once, each kind by itself: a tenant who
// has used up one kind, such as forwarded ports, can still open a console.
type limits struct {
	calls, queries, screenshots, forwards, consoles callers.Kind
	// bodies bounds the request bodies in memory, in bytes, by namespace. decoding bounds how
	// many are decoded at once: decoding takes many times a body's size.
	bodies   *intake.Bodies
	decoding intake.Budget
}

const (
	maxBodies   = 12 << 20
	maxDecoding = 2
)

// newLimits bounds virt-api's memory: an answer of a guest's agent takes up to 2 MiB, a stream
// about 150 KiB, and everything else about 100 KiB.
func newLimits() *limits {
	return &limits{
		calls:       callers.NewKind("calls", 512, 64, 48),
		queries:     callers.NewKind("questions to guests' agents", 32, 8, 6),
		screenshots: callers.NewKind("screenshots", 32, 8, 6),
		forwards:    callers.NewKind("forwarded ports", 300, 100, 75),
		consoles:    callers.NewKind("consoles and screens", 150, 50, 40),
		bodies:      intake.NewBodies(maxBodies),
		decoding:    intake.Budget{Size: maxDecoding},
	}
}

func ofCalls(l *limits) *callers.Kind       { return &l.calls }
func ofQueries(l *limits) *callers.Kind     { return &l.queries }
func ofScreenshots(l *limits) *callers.Kind { return &l.screenshots }

// counted wraps serve, so that a call holds a place of its kind while it is served.
func counted(of func(*limits) *callers.Kind, serve func(*Server, http.ResponseWriter, *call) error) func(*Server, http.ResponseWriter, *call) error {
	return func(s *Server, w http.ResponseWriter, c *call) error {
		ctx, release, err := of(s.limits).Take(c.Context(), c.user, c.namespace)
		if err != nil {
			return err
		}
		defer release()
		c.Request = c.WithContext(ctx)
		return callers.GaveWay(ctx, serve(s, w, c))
	}
}

// body reads a call's body, of at most so many bytes, and passes it to decode.
func (s *Server) body(w http.ResponseWriter, c *call, most int64, decode func([]byte) error) error {
	text, release, err := s.limits.bodies.Read(w, c.Request, c.namespace, most)
	if err != nil {
		return callers.BodyError(err, c.namespace)
	}
	defer release()
	if len(text) > 0 {
		turn, err := s.limits.decoding.Take(c.Context(), c.namespace, 1, nil)
		if err != nil {
			return callers.TooMany(fmt.Sprintf("what is sent along for namespace %q waited too long to be read", c.namespace))
		}
		defer turn.Release()
	}
	return decode(text)
}
