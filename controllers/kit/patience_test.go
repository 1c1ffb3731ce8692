package kit

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// tried is a reconciler that fails with what it has, and how Patient takes that.
type tried struct {
	err    error
	result reconcile.Result
	clock  *clocktesting.FakePassiveClock
	inner  reconcile.Reconciler
	lines  int
	ctx    context.Context
}

func newTried(t *testing.T) *tried {
	f := &tried{clock: clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))}
	f.inner = Patient(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) { return f.result, f.err }), f.clock)
	f.ctx = logr.NewContext(t.Context(), funcr.New(func(string, string) { f.lines++ }, funcr.Options{}))
	return f
}

func (f *tried) again(object string) (time.Duration, error) {
	result, err := f.inner.Reconcile(f.ctx, request(object))
	return result.RequeueAfter, err
}

// TestRefusedObjectIsLoggedOnceAndTriedMoreAndMoreSeldom: until it is not refused any more.
func TestRefusedObjectIsLoggedOnceAndTriedMoreAndMoreSeldom(t *testing.T) {
	f := newTried(t)
	f.err = fmt.Errorf("create pod: %w", apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "x", errors.New("exceeded quota")))
	f.result.RequeueAfter = time.Second // of a reconciler that did not know
	times := 0
	for begin := f.clock.Now(); f.clock.Since(begin) < time.Hour; times++ {
		after, err := f.again("a/refused")
		if err != nil || after < 5*time.Second || after > 5*time.Minute {
			t.Fatalf("after %s: tried again after %s, %v", f.clock.Since(begin), after, err)
		}
		f.clock.SetTime(f.clock.Now().Add(after))
	}
	if f.lines != 1 || times > 40 {
		t.Errorf("%d lines, tried %d times in an hour", f.lines, times)
	}
	if after, err := f.again("a/another"); err != nil || after != 5*time.Second || f.lines != 2 {
		t.Errorf("another object is tried again after %s (%v), and there are %d lines", after, err, f.lines)
	}
	f.err = nil
	if after, err := f.again("a/refused"); err != nil || after != time.Second || f.lines != 2 {
		t.Errorf("what is not refused is looked at again after %s (%v), and there are %d lines", after, err, f.lines)
	}
	f.err = apierrors.NewBadRequest("no")
	if after, _ := f.again("a/refused"); after != 5*time.Second || f.lines != 3 {
		t.Errorf("what is refused anew is tried again after %s, and there are %d lines", after, f.lines)
	}
}

// TestOnlyRefusalsAreNoErrors: another writer that was first is none either.
func TestOnlyRefusalsAreNoErrors(t *testing.T) {
	of := schema.GroupResource{Resource: "pods"}
	for err, want := range map[error]bool{
		apierrors.NewForbidden(of, "x", nil):               false,
		apierrors.NewInvalid(schema.GroupKind{}, "x", nil): false,
		apierrors.NewRequestEntityTooLargeError("x"):       false,
		apierrors.NewConflict(of, "x", nil):                false,
		apierrors.NewInternalError(errors.New("x")):        true,
		apierrors.NewTooManyRequests("x", 1):               true,
		apierrors.NewUnauthorized("x"):                     true,
		errors.New("the API server is away"):               true,
	} {
		f := newTried(t)
		f.err = err
		if after, got := f.again("a/x"); (got != nil) != want || (after > 0) == want {
			t.Errorf("%v: %v, tried again after %s", err, got, after)
		}
	}
}
