package nodelabel

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// nodes is a Reconciler on a cluster with one node.
type nodes struct {
	*Reconciler
	t      *testing.T
	c      client.WithWatch
	clock  *clocktesting.FakePassiveClock
	writes int
	fail   error
}

func newNodes(t *testing.T, objects ...client.Object) *nodes {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(s), coordinationv1.AddToScheme(s), v1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	n := &nodes{t: t, clock: clocktesting.NewFakePassiveClock(at(1000))}
	n.c = fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).Build()
	counting := interceptor.NewClient(n.c, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			n.writes++
			if n.fail != nil {
				return n.fail
			}
			return c.Patch(ctx, o, p, opts...)
		},
	})
	n.Reconciler = &Reconciler{Client: counting, Live: n.c, Clock: n.clock, heard: map[string]heard{}, unread: map[string]string{}}
	return n
}

func node(labels map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: labels, Annotations: map[string]string{"theirs": "stays"}}}
}

func keyOf(name string) client.ObjectKey { return client.ObjectKey{Name: name} }

func clusterOf(config *v1.KubeVirtConfiguration) func(context.Context) (*v1.KubeVirtConfiguration, error) {
	return func(context.Context) (*v1.KubeVirtConfiguration, error) { return config, nil }
}

func (n *nodes) reconcile() ctrl.Result {
	n.t.Helper()
	result, err := n.Reconcile(context.Background(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "node-1"}})
	if err != nil {
		n.t.Fatal(err)
	}
	return result
}

func (n *nodes) renew(accelerator string) {
	n.t.Helper()
	n.put(lease(n.clock.Now(), accelerator))
}

// put creates a Lease or updates it.
func (n *nodes) put(l *coordinationv1.Lease) {
	n.t.Helper()
	err := n.c.Create(context.Background(), l)
	if apierrors.IsAlreadyExists(err) {
		old := &coordinationv1.Lease{}
		err = n.c.Get(context.Background(), client.ObjectKeyFromObject(l), old)
		l.ResourceVersion = old.ResourceVersion
		err = errors.Join(err, n.c.Update(context.Background(), l))
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// has checks labels and how often the node was written.
func (n *nodes) has(want map[string]string, writes int) {
	n.t.Helper()
	got := &corev1.Node{}
	if err := n.c.Get(context.Background(), client.ObjectKey{Name: "node-1"}, got); err != nil {
		n.t.Fatal(err)
	}
	if !maps.Equal(want, got.Labels) {
		n.t.Errorf("labels: %s", cmp.Diff(want, got.Labels))
	}
	if n.writes != writes {
		n.t.Errorf("%d writes, want %d", n.writes, writes)
	}
	if got.Annotations["theirs"] != "stays" {
		n.t.Errorf("annotations %v", got.Annotations)
	}
	_, beats := got.Annotations[HeartbeatAnnotation]
	if beats != (writes > 0) {
		n.t.Errorf("annotations %v after %d writes", got.Annotations, writes)
	}
}

func TestNodeComesAndGoes(t *testing.T) {
	theirs := map[string]string{"theirs": "too"}
	want := func(schedulable, accelerator string) map[string]string {
		return map[string]string{"theirs": "too", v1.SchedulableLabel: schedulable, AcceleratorKey: accelerator}
	}
	n := newNodes(t, node(theirs))
	if again := n.reconcile(); again.RequeueAfter != 0 {
		t.Errorf("a node without virt-handler is looked at again after %v", again.RequeueAfter)
	}
	n.has(theirs, 0)

	n.renew("tcg")
	if again := n.reconcile(); again.RequeueAfter != Lifetime {
		t.Errorf("looked at again after %v, want %v", again.RequeueAfter, Lifetime)
	}
	n.has(want("true", "tcg"), 1)
	for range 10 { // idle: no writes
		n.clock.SetTime(n.clock.Now().Add(time.Minute))
		n.renew("tcg")
		n.reconcile()
	}
	n.has(want("true", "tcg"), 1)

	n.clock.SetTime(n.clock.Now().Add(Lifetime - time.Second))
	if again := n.reconcile(); again.RequeueAfter != time.Second {
		t.Errorf("looked at again after %v, want 1s", again.RequeueAfter)
	}
	n.has(want("true", "tcg"), 1)
	n.clock.SetTime(n.clock.Now().Add(time.Second))
	if again := n.reconcile(); again.RequeueAfter != 0 {
		t.Errorf("gone, and looked at again after %v", again.RequeueAfter)
	}
	n.has(want("false", "tcg"), 2)

	n.renew("kvm")
	n.reconcile()
	n.has(want("true", "kvm"), 3)
	if err := n.c.Delete(context.Background(), lease(time.Time{}, "")); err != nil {
		t.Fatal(err)
	}
	n.reconcile()
	n.has(want("false", "kvm"), 4)
}

// TestRestartTakesNoOldLeaseForNew: the next one does not take an old Lease for a new.
func TestRestartTakesNoOldLeaseForNew(t *testing.T) {
	n := newNodes(t, node(map[string]string{v1.SchedulableLabel: "true"}))
	n.renew("tcg")
	n.clock.SetTime(at(1000).Add(Lifetime))
	n.reconcile()
	n.has(map[string]string{v1.SchedulableLabel: "false", AcceleratorKey: "tcg"}, 1)
}

// TestLabelThatAUserChangedIsRestored: it is ours.
func TestLabelThatAUserChangedIsRestored(t *testing.T) {
	n := newNodes(t, node(map[string]string{v1.SchedulableLabel: "false", AcceleratorKey: "kvm"}))
	n.renew("tcg")
	n.reconcile()
	n.has(map[string]string{v1.SchedulableLabel: "true", AcceleratorKey: "tcg"}, 1)
}

// TestLeaseOfACacheThatIsBehind: a Lease that only the cache does not know to be renewed.
func TestLeaseOfACacheThatIsBehind(t *testing.T) {
	n := newNodes(t, node(nil))
	n.renew("tcg")
	n.reconcile()
	stale := lease(n.clock.Now(), "tcg")
	n.Client = interceptor.NewClient(n.c, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if l, ok := o.(*coordinationv1.Lease); ok {
				stale.DeepCopyInto(l)
				return nil
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
	n.clock.SetTime(at(1000).Add(2 * Lifetime))
	n.renew("tcg")
	n.reconcile()
	n.has(map[string]string{v1.SchedulableLabel: "true", AcceleratorKey: "tcg"}, 1)
}

// TestLeaseIsDeletedWithItsNode: its Lease goes with it, once virt-handler has.
func TestLeaseIsDeletedWithItsNode(t *testing.T) {
	n := newNodes(t)
	n.renew("tcg")
	left := func() int {
		var list coordinationv1.LeaseList
		if err := n.c.List(context.Background(), &list); err != nil {
			t.Fatal(err)
		}
		return len(list.Items)
	}
	if again := n.reconcile(); again.RequeueAfter != Lifetime || left() != 1 {
		t.Errorf("%d Leases, again after %v", left(), again.RequeueAfter)
	}
	n.clock.SetTime(at(1000).Add(Lifetime))
	if again := n.reconcile(); again.RequeueAfter != 0 || left() != 0 || len(n.heard) != 0 {
		t.Errorf("%d Leases, again after %v, heard of %v", left(), again.RequeueAfter, n.heard)
	}
}

func TestFailedWriteIsTriedAgain(t *testing.T) {
	n := newNodes(t, node(nil))
	n.renew("tcg")
	n.fail = context.DeadlineExceeded
	if _, err := n.Reconcile(context.Background(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "node-1"}}); !errors.Is(err, n.fail) {
		t.Errorf("%v, want %v", err, n.fail)
	}
	n.fail = nil
	n.reconcile()
	n.has(map[string]string{v1.SchedulableLabel: "true", AcceleratorKey: "tcg"}, 2)
}

func TestTrimmedNodeHasWhatIsNeeded(t *testing.T) {
	full := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{
		Name: "node-1", UID: "u", ResourceVersion: "7", Labels: map[string]string{"theirs": "x", v1.SchedulableLabel: "true"},
		Annotations: map[string]string{"large": "x"}, ManagedFields: []metav1.ManagedFieldsEntry{{}}}}
	want := &metav1.PartialObjectMetadata{TypeMeta: full.TypeMeta, ObjectMeta: metav1.ObjectMeta{
		Name: "node-1", UID: "u", ResourceVersion: "7", Labels: map[string]string{v1.SchedulableLabel: "true"}}}
	got, err := Trim(full)
	if diff := cmp.Diff(any(want), got); diff != "" || err != nil {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u", ResourceVersion: "7", Labels: map[string]string{"theirs": "x"}},
		Spec: corev1.NodeSpec{PodCIDR: "10.0.0.0/24", Taints: []corev1.Taint{{Key: "a"}}}, Status: corev1.NodeStatus{Images: []corev1.ContainerImage{{}}}}
	whole := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u", ResourceVersion: "7"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "a"}}}}
	got, err = Trim(node)
	if diff := cmp.Diff(any(whole), got); diff != "" || err != nil {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
}
