package subresources

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubeqemu/kubeqemu/internal/intake"
)

// limits bounds the requests that tenants have open at once, each kind by itself: a tenant who
// has used up one kind, such as forwarded ports, can still open a console.
type limits struct {
	// asking counts, by user, the requests whose rights are being looked up.
	asking                                          intake.Budget
	calls, queries, screenshots, forwards, consoles kind
	// bodies bounds the request bodies in memory, in bytes, by namespace. decoding bounds how
	// many are decoded at once: decoding takes many times a body's size.
	bodies   *intake.Bodies
	decoding intake.Budget
}

const (
	maxAsking   = 64 // of one user
	maxBodies   = 12 << 20
	maxDecoding = 2
)

// newLimits bounds virt-api's memory: an answer of a guest's agent takes up to 2 MiB, a stream
// about 150 KiB, and everything else about 100 KiB.
func newLimits() *limits {
	return &limits{
		asking:      intake.Budget{Size: math.MaxInt64, Share: maxAsking},
		calls:       newKind("calls", 512, 64, 48),
		queries:     newKind("questions to guests' agents", 32, 8, 6),
		screenshots: newKind("screenshots", 32, 8, 6),
		forwards:    newKind("forwarded ports", 300, 100, 75),
		consoles:    newKind("consoles and screens", 150, 50, 40),
		bodies:      intake.NewBodies(maxBodies),
		decoding:    intake.Budget{Size: maxDecoding},
	}
}

// kind bounds the requests of one kind at once: in all, of a namespace, and of a user in all
// namespaces. A tenant can make users (service accounts) at will, but no namespaces. When all
// places are taken, the namespace with the most of them gives way.
type kind struct {
	what              string
	namespaces, users intake.Budget
}

func newKind(what string, all, namespace, user int64) kind {
	return kind{what, intake.Budget{Size: all, Share: namespace}, intake.Budget{Size: math.MaxInt64, Share: user}}
}

// roomPatience is how long a call waits for a place that another call gives up.
const roomPatience = 2 * time.Second

var errGaveWay = errors.New("it was ended because virt-api has no more room, and its namespace had most of what there is")

// take takes a place for a call. The context ends, because of errGaveWay, when another
// namespace needs the place. The caller calls release when the call has left nothing behind.
func (k *kind) take(c *call) (ctx context.Context, release func(), err error) {
	ctx, cancel := context.WithCancelCause(c.Context())
	patience, enough := context.WithTimeout(ctx, roomPatience)
	defer enough()
	user, err := k.users.Take(patience, c.user.name, 1, nil)
	if err != nil {
		cancel(err)
		return nil, nil, k.full(fmt.Sprintf("user %q", c.user.name), "user", k.users.Share, err)
	}
	place, err := k.namespaces.Take(patience, c.namespace, 1, func() { cancel(errGaveWay) })
	if err != nil {
		user.Release()
		cancel(err)
		return nil, nil, k.full(fmt.Sprintf("namespace %q", c.namespace), "namespace", k.namespaces.Share, err)
	}
	return ctx, func() { cancel(nil); place.Release(); user.Release() }, nil
}

// full returns a 429 that says whose limit was reached.
func (k *kind) full(whose, one string, share int64, err error) error {
	var all *intake.ShareError
	if errors.As(err, &all) {
		return tooMany(fmt.Sprintf("%s has %d %s at once, which is as many as one %s may", whose, share, k.what, one))
	}
	return tooMany(fmt.Sprintf("virt-api has %d %s at once, which is as many as it bears, and no namespace has more of them than %s", k.namespaces.Size, k.what, whose))
}

func tooMany(text string) error { return apierrors.NewTooManyRequests(text, 5) }

// gaveWay returns err, or a 429 if the call failed because it had to give way.
func gaveWay(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errGaveWay) {
		return tooMany(errGaveWay.Error())
	}
	return err
}

func ofCalls(l *limits) *kind       { return &l.calls }
func ofQueries(l *limits) *kind     { return &l.queries }
func ofScreenshots(l *limits) *kind { return &l.screenshots }

// counted wraps serve, so that a call holds a place of its kind while it is served.
func counted(of func(*limits) *kind, serve func(*Server, http.ResponseWriter, *call) error) func(*Server, http.ResponseWriter, *call) error {
	return func(s *Server, w http.ResponseWriter, c *call) error {
		ctx, release, err := of(s.limits).take(c)
		if err != nil {
			return err
		}
		defer release()
		c.Request = c.WithContext(ctx)
		return gaveWay(ctx, serve(s, w, c))
	}
}

// body reads a call's body, of at most so many bytes, and passes it to decode.
func (s *Server) body(w http.ResponseWriter, c *call, most int64, decode func([]byte) error) error {
	text, release, err := s.limits.bodies.Read(w, c.Request, c.namespace, most)
	var long *intake.TooLongError
	switch {
	case errors.As(err, &long):
		return apierrors.NewRequestEntityTooLargeError(err.Error())
	case errors.Is(err, intake.ErrFull), errors.Is(err, intake.ErrGaveWay):
		return tooMany(fmt.Sprintf("%v: namespace %q has as many bytes on their way to virt-api as any other", err, c.namespace))
	case err != nil:
		return apierrors.NewBadRequest(fmt.Sprintf("Can not read Request body, error: %v", err))
	}
	defer release()
	if len(text) > 0 {
		turn, err := s.limits.decoding.Take(c.Context(), c.namespace, 1, nil)
		if err != nil {
			return tooMany(fmt.Sprintf("what is sent along for namespace %q waited too long to be read", c.namespace))
		}
		defer turn.Release()
	}
	return decode(text)
}
