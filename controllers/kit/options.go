package kit

import (
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
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
// once. The namespaces take turns (turns).
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
		NewQueue: func(name string, limiter rateLimiter) limitedQueue {
			return newQueue(name, workers, limiter, clock.RealClock{})
		},
	}
}
