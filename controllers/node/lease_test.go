package node

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kubeqemu/kubeqemu/controllers/node/accelerator"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/controllers/nodelabel"
	"github.com/kubeqemu/kubeqemu/internal/handlerlease"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// leases is a LeaseWriter that runs, on a clock that stands still.
type leases struct {
	*LeaseWriter
	t     *testing.T
	clock *clocktesting.FakeClock
	c     client.WithWatch
	wrote chan struct{}
	fail  error
}

func startLeases(t *testing.T) *leases {
	l := &leases{t: t, clock: clocktesting.NewFakeClock(time.Unix(1000, 0)), wrote: make(chan struct{}, 100)}
	l.c = fake.NewClientBuilder().WithScheme(nodetest.Scheme(t)).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			t.Error("virt-handler may not read Leases")
			return nil
		},
	}).Build()
	counting := interceptor.NewClient(l.c, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			defer func() { l.wrote <- struct{}{} }()
			if l.fail != nil {
				return l.fail
			}
			return c.Patch(ctx, o, p, opts...)
		},
	})
	l.LeaseWriter = &LeaseWriter{Client: counting, Clock: l.clock, Log: logr.Discard(), NodeName: "node-1",
		Chooser: accelerator.New(nodetest.Broken()), Sessions: connected(t)}
	return l
}

// run starts it; it is stopped at the test's end.
func (l *leases) run() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.Start(ctx) }()
	l.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			l.t.Error(err)
		}
	})
}

// awaitWrite waits for a write, and for the wait after it.
func (l *leases) awaitWrite() {
	l.t.Helper()
	testkit.Receive(l.t, l.wrote, "a write")
	testkit.Until(l.t, "the wait", l.clock.HasWaiters)
}

func (l *leases) lease() *coordinationv1.Lease {
	l.t.Helper()
	var list coordinationv1.LeaseList
	if err := l.c.List(context.Background(), &list); err != nil || len(list.Items) != 1 {
		l.t.Fatalf("%d Leases (%v), want 1", len(list.Items), err)
	}
	return &list.Items[0]
}

func TestLeaseTellsAcceleratorAndVersions(t *testing.T) {
	l := startLeases(t)
	for pod, version := range map[string]string{"a": "8.2.2", "b": "7.2.22", "c": "7.2.22", "d": "8.2.2; a lie"} {
		if !l.Sessions.Add(&sessions.Session{Pod: nodetest.Pod(pod), QEMUVersion: version}) {
			t.Fatalf("the session of %s is not taken", pod)
		}
	}
	l.run()
	l.awaitWrite()
	lease := l.lease()
	if lease.Name != "virt-handler-node-1" || lease.Namespace != "kubevirt" || *lease.Spec.HolderIdentity != "node-1" || *lease.Spec.LeaseDurationSeconds != 300 ||
		lease.Labels[nodelabel.LeaseLabel] != nodelabel.LeaseLabelValue {
		t.Errorf("%+v", lease)
	}
	if !lease.Spec.RenewTime.Time.Equal(l.clock.Now()) {
		t.Errorf("renewed at %v", lease.Spec.RenewTime)
	}
	if got := lease.Annotations; got[nodelabel.AcceleratorKey] != "none" || got[nodelabel.ReasonKey] == "" || got[nodelabel.QEMUVersionKey] != "7.2.22,8.2.2" {
		t.Errorf("annotations %v", got)
	}

	l.Chooser.PermitEmulation(true) // is written at once
	l.awaitWrite()
	if got := l.lease().Annotations[nodelabel.AcceleratorKey]; got != "tcg" {
		t.Errorf("accelerator %q, want tcg", got)
	}
	l.clock.Step(renewInterval - time.Second)
	select {
	case <-l.wrote:
		t.Error("renewed too early")
	case <-time.After(50 * time.Millisecond):
	}
	l.clock.Step(time.Second)
	l.awaitWrite()
	if got := l.lease().Spec.RenewTime.Time; !got.Equal(l.clock.Now()) {
		t.Errorf("renewed at %v, want %v", got, l.clock.Now())
	}
}

func TestFailedLeaseIsWrittenAgain(t *testing.T) {
	l := startLeases(t)
	l.fail = context.DeadlineExceeded
	l.run()
	l.awaitWrite()
	l.fail = nil
	l.clock.Step(renewRetry)
	l.awaitWrite()
	l.lease()
}

// TestLeaseTellsCPUs: what is known of CPUs is written once, and again only into a Lease that is made anew.
func TestLeaseTellsCPUs(t *testing.T) {
	l := startLeases(t)
	var mu sync.Mutex
	text, changed := "", make(chan struct{})
	l.CPUs = func() (string, <-chan struct{}, error) {
		mu.Lock()
		defer mu.Unlock()
		return text, changed, nil
	}
	l.run()
	l.awaitWrite()
	if _, ok := l.lease().Annotations[nodelabel.CPUKey]; ok {
		t.Error("nothing is known, but told")
	}
	mu.Lock()
	before := changed
	text, changed = "known", make(chan struct{})
	mu.Unlock()
	close(before)
	l.awaitWrite()
	if got := l.lease().Annotations[nodelabel.CPUKey]; got != "known" {
		t.Errorf("told %q", got)
	}
	lease := l.lease()
	lease.Annotations[nodelabel.CPUKey] = "not written again"
	if err := l.c.Update(context.Background(), lease); err != nil {
		t.Fatal(err)
	}
	l.clock.Step(renewInterval)
	l.awaitWrite()
	if got := l.lease().Annotations[nodelabel.CPUKey]; got != "not written again" {
		t.Errorf("told %q", got)
	}
	if err := l.c.Delete(context.Background(), l.lease()); err != nil {
		t.Fatal(err)
	}
	l.clock.Step(renewInterval)
	l.awaitWrite()
	if got := l.lease().Annotations[nodelabel.CPUKey]; got != "known" {
		t.Errorf("a new Lease tells %q", got)
	}
}

// TestLeaseTellsTheHost: the node's facts are written once, and again when they change. While there are none, the
// Lease keeps what it says, and is renewed all the same.
func TestLeaseTellsTheHost(t *testing.T) {
	l := startLeases(t)
	said := make(chan string, 1)
	l.Host = func(context.Context) (string, error) {
		if text := <-said; text != "none" {
			return text, nil
		}
		return "", errors.New("not known")
	}
	said <- "one"
	l.run()
	l.awaitWrite()
	for _, c := range []struct{ says, written, want string }{
		{"one", "not written again", "not written again"}, {"two", "", "two"}, {"none", "", "two"}, {"two", "", "two"},
	} {
		if lease := l.lease(); c.written != "" {
			if got := lease.Annotations[handlerlease.HostKey]; got != "one" {
				t.Errorf("told %q", got)
			}
			lease.Annotations[handlerlease.HostKey] = c.written
			if err := l.c.Update(context.Background(), lease); err != nil {
				t.Fatal(err)
			}
		}
		said <- c.says
		l.clock.Step(renewInterval)
		l.awaitWrite()
		lease := l.lease()
		if got := lease.Annotations[handlerlease.HostKey]; got != c.want {
			t.Errorf("with %q the Lease says %q, want %q", c.says, got, c.want)
		}
		if !lease.Spec.RenewTime.Time.Equal(l.clock.Now()) {
			t.Errorf("with %q renewed at %v", c.says, lease.Spec.RenewTime)
		}
	}
}
