package kit

import (
	"errors"
	"net"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// How soon a reconcile that failed is tried again, at first and at most.
const (
	firstRetry = 5 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// Options returns the options of a controller that reconciles workers objects at
// once.
//
// The controller repeats a failed reconcile at least every 10 s. The default backs
// off to once in 16 minutes: the status would show a launcher's report that much
// later, if the report came while the API server was away.
//
// The queue is client-go's. The default is controller-runtime's queue with priorities. Its
// workers may wait for each other when the queue ends, so that the process ends 30 s late and
// holds its lease (https://github.com/kubernetes-sigs/controller-runtime/issues/3538, fixed in
// v0.25, which needs Kubernetes 1.37's packages).
func Options(workers int) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: workers,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		UsePriorityQueue:        ptr.To(false),
	}
}

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
