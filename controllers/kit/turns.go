package kit

import (
	"slices"
	"sync"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// turns is the order in which a controller's queue hands out requests. The namespaces take turns, and the requests of a
// namespace come in the order in which they were added. A namespace has at most so many requests in work at once, so
// that a worker is left for the others, however long its requests take.
//
// workqueue.Typed calls turns under its own lock, but for done.
type turns struct {
	// most is how many requests of a namespace may be in work at once.
	most int

	mu sync.Mutex
	// waiting are the requests of each namespace that has any.
	waiting map[string][]reconcile.Request
	// next are the namespaces of waiting, that of the next turn first.
	next []string
	// working counts the requests in work, by namespace.
	working map[string]int
}

// newTurns returns the order of a queue with workers.
func newTurns(workers int) *turns {
	return &turns{most: max(workers-1, 1), waiting: map[string][]reconcile.Request{}, working: map[string]int{}}
}

// Touch does nothing: a request that is added again keeps its place.
func (t *turns) Touch(reconcile.Request) {}

// Push adds a request at the end of its namespace's.
func (t *turns) Push(r reconcile.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting[r.Namespace]) == 0 {
		t.next = append(t.next, r.Namespace)
	}
	t.waiting[r.Namespace] = append(t.waiting[r.Namespace], r)
}

// Len returns how many requests may be handed out now. Those of a namespace that has enough in work do not count: of
// the workers that have them, one asks for its next request when the namespace may have another.
func (t *turns) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	count := 0
	for namespace, requests := range t.waiting {
		if t.working[namespace] < t.most {
			count += len(requests)
		}
	}
	return count
}

// Pop returns the next request. The caller has made sure that Len is not 0.
func (t *turns) Pop() reconcile.Request {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.next, func(namespace string) bool { return t.working[namespace] < t.most })
	namespace := t.next[i]
	t.next = slices.Delete(t.next, i, i+1)
	requests := t.waiting[namespace]
	if len(requests) > 1 {
		t.waiting[namespace] = requests[1:]
		t.next = append(t.next, namespace)
	} else {
		delete(t.waiting, namespace)
	}
	t.working[namespace]++
	return requests[0]
}

// done tells that a request is not in work any more.
func (t *turns) done(r reconcile.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.working[r.Namespace]--; t.working[r.Namespace] <= 0 {
		delete(t.working, r.Namespace)
	}
}

type (
	rateLimiter  = workqueue.TypedRateLimiter[reconcile.Request]
	limitedQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]
)

// queue is client-go's queue, in the order of turns.
type queue struct {
	limitedQueue
	turns *turns
}

// newQueue returns the queue of a controller with workers. A queue without a name has no metrics.
func newQueue(name string, workers int, limiter rateLimiter, c clock.WithTicker) *queue {
	order := newTurns(workers)
	typed := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[reconcile.Request]{Name: name, Clock: c, Queue: order})
	delaying := workqueue.NewTypedDelayingQueueWithConfig(
		workqueue.TypedDelayingQueueConfig[reconcile.Request]{Name: name, Clock: c, Queue: typed})
	limited := workqueue.NewTypedRateLimitingQueueWithConfig(limiter,
		workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Name: name, Clock: c, DelayingQueue: delaying})
	return &queue{limited, order}
}

// Done ends the work on a request. The namespace's place is free before the worker asks for its next request.
func (q *queue) Done(r reconcile.Request) {
	q.turns.done(r)
	q.limitedQueue.Done(r)
}
