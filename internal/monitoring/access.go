// Package monitoring serves the components' /metrics. A scraper shows the token of an account
// that RBAC lets get /metrics.
package monitoring

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/kubeqemu/kubeqemu/internal/intake"
)

// Path of the metrics.
const Path = "/metrics"

// Access lets in the scrapers that the API server allows.
//
// controller-runtime has such a filter. It links k8s.io/apiserver, and with client-go's typed
// clients every kind of Kubernetes: 18 MiB of memory in virt-api.
type Access struct {
	ask func(ctx context.Context, token string) (answer, error)
	now func() time.Time
	log logr.Logger
	// questions bounds the work that strangers can cause at the API server. It is a rate,
	// because each place is held for at least a pace. Its keys are addresses: an address that
	// shows tokens without end waits behind one that shows its first. A token that was let in
	// before does not wait.
	questions intake.Budget
	pace      time.Duration

	mu    sync.Mutex
	known map[[sha256.Size]byte]known
}

// answer is what the API server says about a token.
type answer int

const (
	unknown answer = iota
	forbidden
	allowed
)

type known struct {
	answer answer
	until  time.Time
}

const (
	// allowedFor is how long a scraper may go on after its right was taken away.
	allowedFor = time.Minute
	refusedFor = 10 * time.Second
	// forgetAfter is how long the token of an absent scraper is remembered: the longest usual
	// interval between scrapes.
	forgetAfter = 5 * time.Minute
	// maxKnown, in tokens, is more than there are scrapers.
	maxKnown = 64

	questionsAtOnce = 8
	questionPace    = 400 * time.Millisecond // 20 a second
	// turnTimeout is how long a token waits for its review: less than scrapers wait.
	turnTimeout = 8 * time.Second
	askTimeout  = 10 * time.Second
)

// NewAccess makes an Access that asks the API server of config.
func NewAccess(config *rest.Config, now func() time.Time, log logr.Logger) (*Access, error) {
	reviews, err := newReviews(config)
	if err != nil {
		return nil, err
	}
	return &Access{ask: reviews.ask, now: now, log: log, questions: intake.Budget{Size: questionsAtOnce}, pace: questionPace, known: map[[sha256.Size]byte]known{}}, nil
}

var errBusy = errors.New("too many unknown tokens are shown, and as many from this address as from any other")

// Guard has next answer the scrapers that are allowed.
func (a *Access) Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if token = strings.TrimSpace(token); !ok || token == "" {
			refuse(w, unknown)
			return
		}
		source := intake.Source(r.RemoteAddr)
		if intake.Vouched(r.Context()) {
			source = r.RemoteAddr // this connection alone, not all of its host
		}
		verdict, err := a.verdict(r.Context(), source, token)
		switch {
		case errors.Is(err, errBusy):
			http.Error(w, err.Error(), http.StatusTooManyRequests)
		case err != nil:
			a.log.Error(err, "find out who asks for metrics")
			http.Error(w, "the API server does not say who this is", http.StatusServiceUnavailable)
		case verdict != allowed:
			refuse(w, verdict)
		default:
			intake.Vouch(r.Context())
			next.ServeHTTP(w, r)
		}
	})
}

func refuse(w http.ResponseWriter, a answer) {
	if a == forbidden {
		http.Error(w, "forbidden: needs the right to get the URL "+Path, http.StatusForbidden)
		return
	}
	w.Header().Set("WWW-Authenticate", "Bearer")
	http.Error(w, "unauthorized: needs the token of a service account", http.StatusUnauthorized)
}

func (a *Access) verdict(ctx context.Context, source, token string) (answer, error) {
	// Not the token itself, which need not stay in memory.
	key, now := sha256.Sum256([]byte(token)), a.now()
	a.mu.Lock()
	k, ok := a.known[key]
	a.mu.Unlock()
	if ok && now.Before(k.until) {
		return k.answer, nil
	}
	if !(ok && k.answer == allowed) {
		done, err := a.turn(ctx, source)
		if err != nil {
			return unknown, err
		}
		defer done()
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	said, err := a.ask(ctx, token)
	if err != nil {
		return unknown, err
	}
	keep := refusedFor
	if said == allowed {
		keep = allowedFor
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.makeRoom(key, now)
	a.known[key] = known{said, now.Add(keep)}
	return said, nil
}

// turn waits until a stranger's token may be reviewed.
func (a *Access) turn(ctx context.Context, source string) (done func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, turnTimeout)
	defer cancel()
	place, err := a.questions.Take(ctx, source, 1, nil)
	if err != nil {
		return nil, errBusy
	}
	until := time.Now().Add(a.pace)
	return func() { time.AfterFunc(time.Until(until), place.Release) }, nil
}

// makeRoom forgets refused tokens first, because strangers make them up. Then it forgets the
// allowed tokens that have not been shown for long.
func (a *Access) makeRoom(key [sha256.Size]byte, now time.Time) {
	if _, ok := a.known[key]; ok || len(a.known) < maxKnown {
		return
	}
	maps.DeleteFunc(a.known, func(_ [sha256.Size]byte, k known) bool { return k.answer != allowed })
	if len(a.known) >= maxKnown {
		maps.DeleteFunc(a.known, func(_ [sha256.Size]byte, k known) bool { return now.Sub(k.until) > forgetAfter })
	}
	if len(a.known) >= maxKnown { // somebody makes many allowed tokens
		clear(a.known)
	}
}

// reviews asks the API server for TokenReviews and SubjectAccessReviews.
type reviews struct{ client rest.Interface }

func newReviews(config *rest.Config) (*reviews, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(authenticationv1.AddToScheme(scheme), authorizationv1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("make scheme: %w", err)
	}
	config = rest.CopyConfig(config)
	group := authenticationv1.SchemeGroupVersion
	config.GroupVersion, config.APIPath = &group, "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.QPS = -1 // Access bounds the questions
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return &reviews{client}, nil
}

// ask asks whose token it is, and whether that account may get the metrics.
func (r *reviews) ask(ctx context.Context, token string) (answer, error) {
	who := &authenticationv1.TokenReview{}
	err := r.client.Post().AbsPath("/apis/authentication.k8s.io/v1/tokenreviews").
		Body(&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}).Do(ctx).Into(who)
	if err != nil {
		return unknown, fmt.Errorf("ask whose token it is: %w", err)
	}
	if !who.Status.Authenticated {
		return unknown, nil
	}
	user := who.Status.User
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	may := &authorizationv1.SubjectAccessReview{}
	err = r.client.Post().AbsPath("/apis/authorization.k8s.io/v1/subjectaccessreviews").
		Body(&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: Path, Verb: "get"}}}).Do(ctx).Into(may)
	switch {
	case err != nil:
		return unknown, fmt.Errorf("ask whether it is allowed: %w", err)
	case may.Status.Allowed && !may.Status.Denied:
		return allowed, nil
	}
	return forbidden, nil
}
