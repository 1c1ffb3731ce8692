package replicaset

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func quantity(s string) resource.Quantity { return resource.MustParse(s) }

// cluster is a Reconciler on an API server that a test can make fail.
type cluster struct {
	*Reconciler
	t      *testing.T
	client client.WithWatch
	clock  *clocktesting.FakePassiveClock
	events *events.FakeRecorder
	writes int // of statuses
}

func newCluster(t *testing.T, faults interceptor.Funcs, objects ...client.Object) *cluster {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, clock: clocktesting.NewFakePassiveClock(now), events: events.NewFakeRecorder(1000)}
	if faults.SubResourcePatch == nil {
		faults.SubResourcePatch = func(ctx context.Context, w client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			c.writes++
			return w.SubResource(sub).Patch(ctx, o, p, opts...)
		}
	}
	c.client = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1.VirtualMachineInstance{}, &v1.VirtualMachineInstanceReplicaSet{}).
		WithObjects(objects...).WithInterceptorFuncs(faults).Build()
	c.Reconciler = &Reconciler{Client: c.client, Live: c.client, Events: c.events, Clock: c.clock}
	return c
}

func (c *cluster) try() (ctrl.Result, error) {
	return c.Reconcile(context.Background(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "ns", Name: "web"}})
}

func (c *cluster) reconcile() time.Duration {
	c.t.Helper()
	result, err := c.try()
	if err != nil {
		c.t.Fatal(err)
	}
	return result.RequeueAfter
}

func (c *cluster) vmis() []*v1.VirtualMachineInstance {
	c.t.Helper()
	all, err := c.instances(context.Background(), c.client, "ns")
	if err != nil {
		c.t.Fatal(err)
	}
	return all
}

func (c *cluster) set() *v1.VirtualMachineInstanceReplicaSet {
	c.t.Helper()
	rs := &v1.VirtualMachineInstanceReplicaSet{}
	if err := c.client.Get(context.Background(), client.ObjectKey{Namespace: "ns", Name: "web"}, rs); err != nil {
		c.t.Fatal(err)
	}
	return rs
}

func (c *cluster) change(change func(rs *v1.VirtualMachineInstanceReplicaSet)) {
	c.t.Helper()
	rs := c.set()
	change(rs)
	rs.Generation++
	if err := c.client.Update(context.Background(), rs); err != nil {
		c.t.Fatal(err)
	}
}

// status is "replicas/ready conditions".
func (c *cluster) status() string {
	c.t.Helper()
	s := c.set().Status
	line := fmt.Sprintf("%d/%d", s.Replicas, s.ReadyReplicas)
	for _, condition := range s.Conditions {
		line += fmt.Sprintf(" %s=%s", condition.Type, condition.Reason)
	}
	return line
}

func (c *cluster) said() string {
	var all []string
	for len(c.events.Events) > 0 {
		all = append(all, strings.Fields(<-c.events.Events)[1])
	}
	return strings.Join(all, " ")
}

func TestReconcileScales(t *testing.T) {
	c := newCluster(t, interceptor.Funcs{}, set(3))
	for range 3 {
		c.reconcile()
	}
	if got := len(c.vmis()); got != 3 || c.status() != "3/0" || c.said() != "SuccessfulCreate SuccessfulCreate SuccessfulCreate" {
		t.Errorf("%d VMIs, status %s", got, c.status())
	}
	if s := c.set().Status.LabelSelector; s != "app=web" {
		t.Errorf("selector %q", s)
	}
	c.writes = 0
	for range 3 {
		c.reconcile()
	}
	if c.writes != 0 {
		t.Errorf("%d writes of a status that does not change", c.writes)
	}
	c.change(func(rs *v1.VirtualMachineInstanceReplicaSet) { rs.Spec.Replicas = new(int32) })
	c.reconcile()
	c.reconcile()
	if got := len(c.vmis()); got != 0 || c.status() != "0/0" || c.said() != "SuccessfulDelete SuccessfulDelete SuccessfulDelete" {
		t.Errorf("%d VMIs, status %s", got, c.status())
	}
}

func TestReconcileReplaces(t *testing.T) {
	c := newCluster(t, interceptor.Funcs{}, set(2), guest(t, "a Failed 3s"), guest(t, "b Running/Ready 3s"))
	if again := c.reconcile(); again != 7*time.Second || len(c.vmis()) != 2 || c.status() != "1/1" {
		t.Errorf("again in %v, %d VMIs, status %s", again, len(c.vmis()), c.status())
	}
	c.clock.SetTime(now.Add(7 * time.Second))
	c.reconcile()
	if got := joined(c.vmis()); strings.HasPrefix(got, "a ") || len(c.vmis()) != 2 {
		t.Errorf("VMIs %q", got)
	}
}

func TestReconcilePaused(t *testing.T) {
	rs := set(3)
	rs.Spec.Paused = true
	c := newCluster(t, interceptor.Funcs{}, rs, guest(t, "a Failed 1m"), guest(t, "b Running/Ready 1m"))
	c.reconcile()
	c.reconcile()
	if got := joined(c.vmis()); got != "a b" || c.status() != "1/1 ReplicaPaused=Paused" || c.said() != "SuccessfulPaused" {
		t.Errorf("VMIs %q, status %s", got, c.status())
	}
	c.change(func(rs *v1.VirtualMachineInstanceReplicaSet) { rs.Spec.Paused = false })
	c.reconcile()
	c.reconcile()
	if got := len(c.vmis()); got != 3 || c.status() != "3/1" {
		t.Errorf("%d VMIs, status %s", got, c.status())
	}
	if said := c.said(); !strings.Contains(said, "SuccessfulResumed") {
		t.Errorf("events %s", said)
	}
}

func TestReconcileInvalid(t *testing.T) {
	rs := set(3)
	rs.Spec.Template.ObjectMeta.Labels = nil
	c := newCluster(t, interceptor.Funcs{}, rs, guest(t, "a Running/Ready 1m"))
	c.reconcile()
	c.reconcile()
	if c.status() != "1/1 ReplicaFailure=InvalidSpec" || len(c.vmis()) != 1 || c.said() != "InvalidSpec" {
		t.Errorf("status %s, %d VMIs", c.status(), len(c.vmis()))
	}
	c.change(func(rs *v1.VirtualMachineInstanceReplicaSet) {
		rs.Spec.Template.ObjectMeta.Labels = map[string]string{"app": "web"}
	})
	c.reconcile()
	c.reconcile()
	if c.status() != "3/1" {
		t.Errorf("status %s", c.status())
	}
}

func TestReconcileFails(t *testing.T) {
	down := errors.New("quota says no")
	failing := true
	c := newCluster(t, interceptor.Funcs{
		Create: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if failing {
				return down
			}
			return w.Create(ctx, o, opts...)
		},
		Delete: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if failing {
				return down
			}
			return w.Delete(ctx, o, opts...)
		},
	}, set(1))
	_, err := c.try()
	if !errors.Is(err, down) || c.status() != "0/0 ReplicaFailure=FailedCreate" || c.said() != "FailedCreate" {
		t.Errorf("%v, status %s", err, c.status())
	}
	failing = false
	c.reconcile()
	failing = true
	c.change(func(rs *v1.VirtualMachineInstanceReplicaSet) { rs.Spec.Replicas = new(int32) })
	c.said()
	if _, err := c.try(); !errors.Is(err, down) || c.status() != "1/0 ReplicaFailure=FailedDelete" || c.said() != "FailedDelete" {
		t.Errorf("%v, status %s", err, c.status())
	}
	failing = false
	c.reconcile()
	c.reconcile()
	if c.status() != "0/0" {
		t.Errorf("status %s", c.status())
	}
}

// TestReconcileCacheBehind: the cache does not show what was made, was deleted
// or that the ReplicaSet is gone. Nothing is done twice.
func TestReconcileCacheBehind(t *testing.T) {
	stale := func(c *cluster, vmis []*v1.VirtualMachineInstance, rs *v1.VirtualMachineInstanceReplicaSet) {
		c.Client = interceptor.NewClient(c.client, interceptor.Funcs{
			List: func(ctx context.Context, w client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				l := list.(*v1.VirtualMachineInstanceList)
				for _, vmi := range vmis {
					l.Items = append(l.Items, *vmi.DeepCopy())
				}
				return nil
			},
			Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				rs.DeepCopyInto(o.(*v1.VirtualMachineInstanceReplicaSet))
				return nil
			},
		})
	}
	c := newCluster(t, interceptor.Funcs{}, set(3))
	empty := c.set()
	stale(c, nil, empty)
	for range 5 {
		c.reconcile()
	}
	if got := len(c.vmis()); got != 3 {
		t.Errorf("%d VMIs were made, want 3", got)
	}

	one := int32(1)
	c.Client = c.client
	c.change(func(rs *v1.VirtualMachineInstanceReplicaSet) { rs.Spec.Replicas = &one })
	stale(c, c.vmis(), c.set())
	for range 5 {
		c.reconcile()
	}
	if got := len(c.vmis()); got != 1 {
		t.Errorf("%d VMIs are left, want 1", got)
	}

	for what, change := range map[string]func(c *cluster){
		"deleted": func(c *cluster) {
			if err := c.client.Delete(context.Background(), c.set()); err != nil {
				t.Fatal(err)
			}
		},
		"scaled to none": func(c *cluster) {
			c.change(func(rs *v1.VirtualMachineInstanceReplicaSet) { rs.Spec.Replicas = new(int32) })
		},
		"paused": func(c *cluster) {
			c.change(func(rs *v1.VirtualMachineInstanceReplicaSet) { rs.Spec.Paused = true })
		},
	} {
		orphan := guest(t, "orphan Running/Ready 1m")
		orphan.OwnerReferences = nil
		c := newCluster(t, interceptor.Funcs{}, set(3), orphan)
		before := c.set()
		change(c)
		stale(c, nil, before)
		if _, err := c.try(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got := joined(c.vmis()); got != "orphan" || len(c.vmis()[0].OwnerReferences) > 0 {
			t.Errorf("%s: VMIs are %q", what, got)
		}
	}
}

func TestReconcileAdopts(t *testing.T) {
	orphan, stray := guest(t, "orphan Running/Ready 1m"), guest(t, "stray Running/Ready 1m")
	orphan.OwnerReferences = nil
	stray.Labels = map[string]string{"app": "db"}
	other := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "x"}
	stray.OwnerReferences = append(stray.OwnerReferences, other)
	c := newCluster(t, interceptor.Funcs{}, set(1), orphan, stray)
	c.reconcile()
	for _, vmi := range c.vmis() {
		switch owned := controls(c.set(), vmi); {
		case vmi.Name == "orphan" && !owned:
			t.Error("the orphan was not adopted")
		case vmi.Name == "stray" && (owned || len(vmi.OwnerReferences) != 1):
			t.Errorf("the stray was not released: %+v", vmi.OwnerReferences)
		}
	}
	if len(c.vmis()) != 2 || c.status() != "1/1" {
		t.Errorf("VMIs %q, status %s", joined(c.vmis()), c.status())
	}
}

func TestConcerned(t *testing.T) {
	c := newCluster(t, interceptor.Funcs{}, set(1))
	for what, tt := range map[string]struct {
		change func(vmi *v1.VirtualMachineInstance)
		want   int
	}{
		"owned":              {func(vmi *v1.VirtualMachineInstance) { vmi.Labels = nil }, 1},
		"orphan":             {func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences = nil }, 1},
		"unconcerned orphan": {func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences, vmi.Labels = nil, nil }, 0},
		"a VM's":             {func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences[0].Kind = "VirtualMachine" }, 0},
	} {
		vmi := guest(t, "a Running 1m")
		tt.change(vmi)
		if got := c.concerned(context.Background(), vmi); len(got) != tt.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}

// TestReconcilePresets: VMIs are made with their presets, and not made where presets contradict
// each other.
func TestReconcilePresets(t *testing.T) {
	preset := func(name string, cores uint32) v1.VirtualMachineInstancePreset {
		return v1.VirtualMachineInstancePreset{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.VirtualMachineInstancePresetSpec{
			Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Domain: &v1.DomainSpec{CPU: &v1.CPU{Cores: cores}}}}
	}
	c := newCluster(t, interceptor.Funcs{}, set(2))
	presets := []v1.VirtualMachineInstancePreset{preset("a", 2), preset("b", 4)}
	c.Presets = func(context.Context, string) ([]v1.VirtualMachineInstancePreset, error) { return presets, nil }
	if after := c.reconcile(); after != 5*time.Second || c.status() != "0/0 ReplicaFailure=FailedCreate" || len(c.vmis()) != 0 {
		t.Errorf("again after %v, status %s, %d VMIs", after, c.status(), len(c.vmis()))
	}
	presets = presets[:1]
	c.reconcile()
	for _, vmi := range c.vmis() {
		if cpu := vmi.Spec.Domain.CPU; cpu == nil || cpu.Cores != 2 || len(vmi.Finalizers) != 1 || vmi.Annotations[v1.PresetAnnotation+"a"] == "" {
			t.Errorf("CPU %+v, finalizers %v, annotations %v", cpu, vmi.Finalizers, vmi.Annotations)
		}
	}
	if len(c.vmis()) != 2 || c.set().Spec.Template.Spec.Domain.CPU != nil {
		t.Errorf("%d VMIs of the template %+v", len(c.vmis()), c.set().Spec.Template.Spec.Domain)
	}
}
