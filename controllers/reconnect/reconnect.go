// Package reconnect has controllers notice soon that an API server that was
// away is back.
package reconnect

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

// Options are those of a controller that reconciles as many objects at once as
// there are workers.
//
// A reconcile that failed is tried again at least every 10 s. The default backs
// off to once in 16 minutes: what a launcher said while the API server was away
// would be in the status that much later.
//
// The queue is client-go's. Workers of the default one, which has priorities,
// may wait for each other when it ends, so that the process ends 30 s late and
// holds its lease (https://github.com/kubernetes-sigs/controller-runtime/issues/3538,
// mended in v0.25, which needs Kubernetes 1.37's packages).
func Options(workers int) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: workers,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		UsePriorityQueue:        ptr.To(false),
	}
}

// pause is between two attempts to connect.
const pause = time.Second

// Wrap has the config's clients try again each second to connect for a watch.
// A reflector would do so by itself, but backs off to once in 30 to 60 s
// (client-go's tools/cache/reflector.go), and for as long after the API
// server's return would the status of every VMI be what it was before. Whoever
// answers, and be it with an error, ends the waiting: that is backed off from.
func Wrap(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &transport{next: next, pause: pause} })
}

type transport struct {
	next  http.RoundTripper
	pause time.Duration
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	for {
		response, err := t.next.RoundTrip(r)
		if err == nil || !isWatch(r) || !isDial(err) {
			return response, err
		}
		timer := time.NewTimer(t.pause)
		select {
		case <-timer.C:
		case <-r.Context().Done():
			timer.Stop()
			return nil, err
		}
	}
}

// WrappedRoundTripper lets client-go find what is wrapped.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

func isWatch(r *http.Request) bool {
	watch := r.URL.Query().Get("watch")
	return r.Method == http.MethodGet && (watch == "true" || watch == "1")
}

// isDial says whether nobody was reached: a request that was sent is not
// repeated here.
func isDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
