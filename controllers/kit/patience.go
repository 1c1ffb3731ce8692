package kit

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// How soon what the API server refused is tried again, at first and at most.
const (
	soonestTry = 5 * time.Second
	latestTry  = 5 * time.Minute
)

// Wait returns how long to wait until something is tried again that has been refused for so long: a quarter of that,
// within bounds. Somebody has to change something first.
func Wait(refused time.Duration) time.Duration {
	return min(max(refused/4, soonestTry), latestTry)
}

// IsRefusal reports whether the API server will not do something until somebody changes an object, a quota or a right.
func IsRefusal(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsRequestEntityTooLargeError(err)
}

// patient is the reconciler of Patient.
type patient struct {
	reconcile.Reconciler
	clock clock.PassiveClock

	mu sync.Mutex
	// since is when the API server began to refuse what an object needs.
	since map[types.NamespacedName]time.Time
}

// Patient returns a reconciler for objects of tenants. If the API server refuses what an object needs, that is no error
// of the controller's: the object's status says it. Each such object is tried again ever more seldom (Wait), and the
// log has one line, when that begins. An event of the object has it tried at once.
func Patient(r reconcile.Reconciler, c clock.PassiveClock) reconcile.Reconciler {
	return &patient{Reconciler: r, clock: c, since: map[types.NamespacedName]time.Time{}}
}

// Reconcile reconciles an object. A conflict means that the cache is behind, whose event may be the one of another
// object.
func (p *patient) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	result, err := p.Reconciler.Reconcile(ctx, request)
	switch {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: WriteDelay}, nil
	case !IsRefusal(err):
		p.forget(request.NamespacedName)
		return result, err
	}
	refused, first := p.refused(request.NamespacedName)
	if first {
		ctrl.LoggerFrom(ctx).Info("the API server refuses what an object needs, which is tried again without further words",
			"refusal", err.Error())
	}
	return reconcile.Result{RequeueAfter: Wait(refused)}, nil
}

// refused returns for how long an object has been refused, and whether this is the first time.
func (p *patient) refused(object types.NamespacedName) (time.Duration, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	since, again := p.since[object]
	if !again {
		p.since[object] = now
		return 0, true
	}
	return now.Sub(since), false
}

func (p *patient) forget(object types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.since, object)
}
