package kit

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// request is of an object "NAMESPACE/NAME".
func request(text string) reconcile.Request {
	namespace, name, _ := strings.Cut(text, "/")
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

// handsOut adds requests to a queue with so many workers, takes all of them, one after the other, and returns them.
func handsOut(workers int, texts ...string) string {
	t := newTurns(workers)
	for _, text := range texts {
		t.Push(request(text))
	}
	var out []string
	for t.Len() > 0 {
		r := t.Pop()
		t.done(r)
		out = append(out, r.String())
	}
	return strings.Join(out, " ")
}

// TestNamespacesTakeTurns: and a namespace's requests keep their order.
func TestNamespacesTakeTurns(t *testing.T) {
	for _, c := range []struct{ name, add, want string }{
		{"one namespace", "a/1 a/2 a/3", "a/1 a/2 a/3"},
		{"another that comes late", "a/1 a/2 a/3 a/4 b/1", "a/1 b/1 a/2 a/3 a/4"},
		{"three", "a/1 a/2 b/1 c/1 c/2 c/3", "a/1 b/1 c/1 a/2 c/2 c/3"},
		{"objects without a namespace", "/n a/1 a/2", "/n a/1 a/2"},
	} {
		if got := handsOut(1, strings.Fields(c.add)...); strings.ReplaceAll(" "+got, " /", " /") != " "+c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// TestNamespaceLeavesAWorkerToTheOthers: however many requests it has, and however long they take.
func TestNamespaceLeavesAWorkerToTheOthers(t *testing.T) {
	order := newTurns(3)
	for i := range 10 {
		order.Push(request(fmt.Sprintf("a/%d", i)))
	}
	first, second := order.Pop(), order.Pop()
	if order.Len() != 0 {
		t.Fatalf("%d requests more are handed out while %s and %s are in work", order.Len(), first, second)
	}
	order.Push(request("b/0"))
	if order.Len() != 1 {
		t.Fatalf("%d requests are handed out, want one", order.Len())
	}
	if r := order.Pop(); r.Namespace != "b" {
		t.Errorf("%s is handed out", r)
	}
	order.done(first)
	if r := order.Pop(); r != request("a/2") {
		t.Errorf("%s is handed out, want the next", r)
	}
	if alone := newTurns(1); alone.most != 1 {
		t.Errorf("the only worker takes %d", alone.most)
	}
}

// TestTurnsKeepNothingOfWhatIsDone: a namespace that has been served leaves nothing.
func TestTurnsKeepNothingOfWhatIsDone(t *testing.T) {
	order := newTurns(4)
	for i := range 1000 {
		order.Push(request(fmt.Sprintf("%d/x", i%7)))
	}
	for order.Len() > 0 {
		order.done(order.Pop())
	}
	if len(order.waiting)+len(order.next)+len(order.working) != 0 {
		t.Errorf("left: %v, %v, %v", order.waiting, order.next, order.working)
	}
}

// TestRequestIsInWorkOnce: a request that is added again waits until it is done, and is then handed out once. Of those
// that wait, it keeps its place.
func TestRequestIsInWorkOnce(t *testing.T) {
	q := newQueue("", 4, nil, clock.RealClock{})
	defer q.ShutDown()
	for _, text := range []string{"a/1", "a/2", "a/1"} {
		q.Add(request(text))
	}
	first, _ := q.Get()
	q.Add(first)
	q.Add(first)
	second, _ := q.Get()
	if first != request("a/1") || second != request("a/2") || q.Len() != 0 {
		t.Errorf("handed out %s and %s, and %d more", first, second, q.Len())
	}
	q.Done(second)
	if q.Len() != 0 {
		t.Error("a request is handed out that is in work")
	}
	q.Done(first)
	if again, _ := q.Get(); again != first || q.Len() != 0 {
		t.Errorf("handed out %s, and %d more", again, q.Len())
	}
}

// TestQueueBacksOffByObject: an object that fails again and again is tried more and more seldom, and no other waits for
// it.
func TestQueueBacksOffByObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue("", 4, Options(4).RateLimiter, clock.RealClock{})
		defer q.ShutDown()
		begin, bad, good := time.Now(), request("a/bad"), request("b/good")
		for q.Add(bad); time.Since(begin) < 20*time.Second; {
			r, _ := q.Get()
			q.AddRateLimited(r)
			q.Done(r)
		}
		if n := q.NumRequeues(bad); n < 10 || n > 14 {
			t.Errorf("tried %d times in 20 s", n)
		}
		if q.NumRequeues(good) != 0 {
			t.Error("another object is held back")
		}
		if q.Forget(bad); q.NumRequeues(bad) != 0 {
			t.Error("its failures are not forgotten")
		}
	})
}

// TestNobodyStarves: with workers that take long, and more requests of one namespace than they can ever serve, each of
// the others' requests is served after one turn of each namespace.
func TestNobodyStarves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers, long = 4, time.Second
		waited := make(chan time.Duration, 100)
		options := Options(workers)
		options.SkipNameValidation = ptr.To(true)
		var mu sync.Mutex
		added := map[string]time.Time{}
		options.Reconciler = reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
			mu.Lock()
			since, ok := added[r.Namespace]
			mu.Unlock()
			if ok {
				waited <- time.Since(since)
				return reconcile.Result{}, nil
			}
			time.Sleep(time.Duration(rand.Int64N(int64(long))))
			return reconcile.Result{}, fmt.Errorf("refused")
		})
		c, err := controller.NewUnmanaged("starving", options)
		if err != nil {
			t.Fatal(err)
		}
		queue := make(chan limitedQueue, 1)
		if err := c.Watch(source.Func(func(_ context.Context, q limitedQueue) error {
			for i := range 1000 {
				q.Add(request(fmt.Sprintf("greedy-%d/%d", i%2, i))) // of two namespaces, as one tenant may have
			}
			queue <- q
			return nil
		})); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Start(ctx) }()
		q := <-queue
		time.Sleep(time.Minute)
		for i := range 20 {
			namespace := fmt.Sprintf("neighbour-%d", i)
			mu.Lock()
			added[namespace] = time.Now()
			mu.Unlock()
			q.Add(request(namespace + "/vm"))
			if took := <-waited; took > 2*long {
				t.Errorf("%s waited for %s", namespace, took)
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestWorkersEndThoughNamespacesHaveEnough: of a queue that ends, every worker ends, whatever waits.
func TestWorkersEndThoughNamespacesHaveEnough(t *testing.T) {
	q := newQueue("", 3, nil, clock.RealClock{})
	for i := range 5 {
		q.Add(request(fmt.Sprintf("a/%d", i)))
	}
	served := make(chan reconcile.Request)
	var workers sync.WaitGroup
	for range 3 {
		workers.Go(func() {
			for {
				r, ended := q.Get()
				if ended {
					return
				}
				served <- r
				q.Done(r)
			}
		})
	}
	q.ShutDown()
	got := map[reconcile.Request]bool{}
	for range 5 { // what was in the queue is still served
		got[testkit.Receive(t, served, "the next request")] = true
	}
	workers.Wait()
	if q.Add(request("b/0")); len(got) != 5 || q.Len() != 0 {
		t.Errorf("served %v, and %d wait", slices.Collect(maps.Keys(got)), q.Len())
	}
}

// TestQueueHasItsMetrics: those of client-go's queue.
func TestQueueHasItsMetrics(t *testing.T) {
	q := newQueue("turns-test", 3, Options(3).RateLimiter, clock.RealClock{})
	defer q.ShutDown()
	for i := range 5 {
		q.Add(request(fmt.Sprintf("a/%d", i)))
	}
	r, _ := q.Get()
	q.Done(r)
	families, err := metrics.Registry.(prometheus.Gatherer).Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == "name" && l.GetValue() == "turns-test" }) {
				got[f.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	for name, want := range map[string]float64{"workqueue_adds_total": 5, "workqueue_depth": 4, "workqueue_queue_duration_seconds": 1, "workqueue_work_duration_seconds": 1} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v (of %v)", name, got[name], want, got)
		}
	}
}
