package migration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kubeqemu/kubeqemu/api/migrations/v1alpha1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// cluster is a Reconciler on an API server that is made up. The test plays the scheduler, the kubelets and the
// virt-handlers.
type cluster struct {
	*Reconciler
	t      *testing.T
	client client.WithWatch
	clock  *clocktesting.FakePassiveClock
	events *events.FakeRecorder
	// refuse is the API server's answer to the creation of a pod.
	refuse error
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(s), v1alpha1.AddToScheme(s), v1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, clock: clocktesting.NewFakePassiveClock(time.Unix(1000, 0)), events: events.NewFakeRecorder(100)}
	c.client = fake.NewClientBuilder().WithScheme(s).WithStatusSubresource(&v1.VirtualMachineInstance{}, &v1.VirtualMachineInstanceMigration{}, &corev1.Pod{}).
		WithIndex(&v1.VirtualMachineInstanceMigration{}, nameIndex, indexByVMI).WithIndex(&v1.VirtualMachineInstance{}, migrationIndex, indexByMigration).WithInterceptorFuncs(interceptor.Funcs{Create: func(ctx context.Context, w client.WithWatch, o client.Object, options ...client.CreateOption) error {
		if _, pod := o.(*corev1.Pod); pod && c.refuse != nil {
			return c.refuse
		}
		return w.Create(ctx, o, options...)
	}}).Build()
	c.Reconciler = &Reconciler{Client: c.client, Live: c.client, Events: c.events, Clock: c.clock, Policies: &Policies{Live: c.client, Clock: c.clock},
		Cluster: func(context.Context) (*v1.KubeVirtConfiguration, error) { return &v1.KubeVirtConfiguration{}, nil },
		TargetPod: func(_ context.Context, vmi *v1.VirtualMachineInstance, m *v1.VirtualMachineInstanceMigration) (*corev1.Pod, kit.Room, error) {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: vmi.Namespace, Name: v1.LauncherPodName(vmi.Name, vmi.UID, m.UID), UID: "target",
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)}}}, kit.Room{}, nil
		}}
	// Guests may go there, unless the test says more of the nodes.
	c.make(elsewhere())
	return c
}

// elsewhere is a node that takes any guest.
func elsewhere() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere", Labels: map[string]string{v1.SchedulableLabel: "true"}}}
}

// onTwoNodes leaves the two nodes of a mover's cluster.
func (c *cluster) onTwoNodes() {
	c.t.Helper()
	if err := c.client.Delete(c.t.Context(), elsewhere()); err != nil {
		c.t.Fatal(err)
	}
}

// vm makes a VMI whose guest runs on a node, and its pod.
func (c *cluster) vm(name, node string) *v1.VirtualMachineInstance {
	c.t.Helper()
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name + "-uid"), Finalizers: []string{v1.VMIFinalizer}}}
	vmi.Status = v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: node, LauncherPods: []v1.LauncherPod{{Name: vmi.LauncherPod(), UID: "source"}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: vmi.LauncherPod(), UID: "source",
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)}}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	c.make(vmi, pod)
	return vmi
}

// migration makes a migration of a VMI.
func (c *cluster) migration(name, vmi string) *v1.VirtualMachineInstanceMigration {
	c.t.Helper()
	m := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(c.clock.Now())}}
	m.Spec.VMIName = vmi
	c.make(m)
	return m
}

func (c *cluster) make(objects ...client.Object) {
	c.t.Helper()
	for _, o := range objects {
		if err := c.client.Create(context.Background(), o); err != nil {
			c.t.Fatal(err)
		}
	}
}

// steps reconciles until nothing changes any more, and returns the migration and its VMI.
func (c *cluster) steps(m *v1.VirtualMachineInstanceMigration) (*v1.VirtualMachineInstanceMigration, *v1.VirtualMachineInstance) {
	c.t.Helper()
	for range 8 {
		if _, err := c.Reconcile(context.Background(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(m)}); err != nil {
			c.t.Fatal(err)
		}
	}
	now, vmi := &v1.VirtualMachineInstanceMigration{}, &v1.VirtualMachineInstance{}
	if err := c.client.Get(context.Background(), client.ObjectKeyFromObject(m), now); err != nil {
		now = nil
	}
	if err := c.client.Get(context.Background(), types.NamespacedName{Namespace: "default", Name: m.Spec.VMIName}, vmi); err != nil {
		vmi = nil
	}
	return now, vmi
}

// target changes the target pod.
func (c *cluster) target(m *v1.VirtualMachineInstanceMigration, change func(*corev1.Pod)) {
	c.t.Helper()
	pod := &corev1.Pod{}
	key := types.NamespacedName{Namespace: "default", Name: v1.LauncherPodName(m.Spec.VMIName, types.UID(m.Spec.VMIName+"-uid"), m.UID)}
	if err := c.client.Get(context.Background(), key, pod); err != nil {
		c.t.Fatal(err)
	}
	change(pod)
	status := pod.Status
	if err := c.client.Update(context.Background(), pod); err != nil {
		c.t.Fatal(err)
	}
	pod.Status = status
	if err := c.client.Status().Update(context.Background(), pod); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) targets() int {
	c.t.Helper()
	var pods corev1.PodList
	if err := c.client.List(context.Background(), &pods); err != nil {
		c.t.Fatal(err)
	}
	return len(slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.UID != "target" }))
}

// launches has the target's launcher run on a node.
func (c *cluster) launches(m *v1.VirtualMachineInstanceMigration, node string) {
	c.t.Helper()
	c.target(m, func(pod *corev1.Pod) {
		pod.Spec.NodeName = node
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
	})
}

// handlers writes what the virt-handlers report.
func (c *cluster) handlers(m *v1.VirtualMachineInstanceMigration, change func(*v1.VirtualMachineInstanceMigrationState)) {
	c.t.Helper()
	vmi := &v1.VirtualMachineInstance{}
	if err := c.client.Get(context.Background(), types.NamespacedName{Namespace: "default", Name: m.Spec.VMIName}, vmi); err != nil {
		c.t.Fatal(err)
	}
	change(vmi.Status.MigrationState)
	if err := c.client.Status().Update(context.Background(), vmi); err != nil {
		c.t.Fatal(err)
	}
}

// said returns the reasons of the events since the last call.
func (c *cluster) said() string {
	var out []string
	for {
		select {
		case e := <-c.events.Events:
			out = append(out, strings.Fields(e)[1])
		default:
			return strings.Join(out, " ")
		}
	}
}

// stages brings a migration to a phase.
var stages = []struct {
	phase v1.VirtualMachineInstanceMigrationPhase
	come  func(c *cluster, m *v1.VirtualMachineInstanceMigration)
}{
	{v1.MigrationScheduling, func(*cluster, *v1.VirtualMachineInstanceMigration) {}},
	{v1.MigrationPreparingTarget, func(c *cluster, m *v1.VirtualMachineInstanceMigration) { c.launches(m, "node2") }},
	{v1.MigrationTargetReady, func(c *cluster, m *v1.VirtualMachineInstanceMigration) {
		c.handlers(m, func(s *v1.VirtualMachineInstanceMigrationState) {
			s.TargetState = &v1.MigrationTargetState{NodeAddress: "10.0.0.2"}
		})
	}},
	{v1.MigrationRunning, func(c *cluster, m *v1.VirtualMachineInstanceMigration) {
		c.handlers(m, func(s *v1.VirtualMachineInstanceMigrationState) {
			s.SourceState = &v1.MigrationSourceState{StartTimestamp: ptr.To(metav1.NewTime(c.clock.Now()))}
		})
	}},
}

// comes brings a migration to a phase.
func (c *cluster) comes(m *v1.VirtualMachineInstanceMigration, to v1.VirtualMachineInstanceMigrationPhase) {
	c.t.Helper()
	for _, stage := range stages {
		c.steps(m)
		stage.come(c, m)
		now, _ := c.steps(m)
		if now.Status.Phase != stage.phase {
			c.t.Fatalf("the phase is %s, want %s", now.Status.Phase, stage.phase)
		}
		if stage.phase == to {
			return
		}
	}
}

// arrives has the guest run on the target. The VMI's controller follows.
func (c *cluster) arrives(m *v1.VirtualMachineInstanceMigration) {
	c.t.Helper()
	vmi := &v1.VirtualMachineInstance{}
	if err := c.client.Get(context.Background(), types.NamespacedName{Namespace: "default", Name: m.Spec.VMIName}, vmi); err != nil {
		c.t.Fatal(err)
	}
	vmi.Status.LauncherPod, vmi.Status.NodeName = vmi.Status.MigrationState.TargetPod, vmi.Status.MigrationState.TargetNode
	if err := c.client.Status().Update(context.Background(), vmi); err != nil {
		c.t.Fatal(err)
	}
	c.handlers(m, func(s *v1.VirtualMachineInstanceMigrationState) {
		s.Decision, s.TargetState.DomainReadyTimestamp = v1.DecisionTarget, ptr.To(metav1.NewTime(c.clock.Now()))
		s.SourceState.Progress = &v1.MigrationProgress{DowntimeMilliseconds: 42}
	})
}

// TestMigrationSucceeds follows a migration from its creation to its end.
func TestMigrationSucceeds(t *testing.T) {
	c := newCluster(t)
	c.vm("a", "node1")
	m := c.migration("m", "a")
	c.comes(m, v1.MigrationRunning)
	if said := c.said(); said != "SuccessfulCreate PreparingTarget PreparingTarget Migrating Migrating" {
		t.Errorf("events %s", said)
	}
	now, vmi := c.steps(m)
	s := vmi.Status.MigrationState
	if !hasFinalizer(now) || now.Labels[v1.VMINameLabel] != "a" || s.SourceNode != "node1" || s.TargetNode != "node2" || s.TargetNodeAddress != "10.0.0.2" ||
		s.StartTimestamp == nil || s.Mode != v1.MigrationPreCopy || len(vmi.Status.LauncherPods) != 2 || now.Status.MigrationState.TargetPod != s.TargetPod {
		t.Errorf("%+v\n%+v", now, s)
	}
	c.arrives(m)
	c.handlers(m, func(s *v1.VirtualMachineInstanceMigrationState) {})
	now, vmi = c.steps(m)
	if s := now.Status.MigrationState; now.Status.Phase != v1.MigrationSucceeded || !s.Completed || s.Failed || s.EndTimestamp == nil || s.SourceState.Progress.DowntimeMilliseconds != 42 {
		t.Errorf("%s %+v", now.Status.Phase, s)
	}
	if vmi.Migration() != nil || !vmi.Status.MigrationState.Completed {
		t.Errorf("the VMI says %+v", vmi.Status.MigrationState)
	}
	if said := c.said(); said != "SuccessfulMigration SuccessfulMigration" {
		t.Errorf("events %s", said)
	}
}

// TestSourcePodIsDeletedAfterAWhile: a source pod that its virt-handler has not ended is deleted after a while.
func TestSourcePodIsDeletedAfterAWhile(t *testing.T) {
	c := newCluster(t)
	vmi := c.vm("a", "node1")
	source := types.NamespacedName{Namespace: "default", Name: vmi.LauncherPod()}
	m := c.migration("m", "a")
	c.comes(m, v1.MigrationRunning)
	c.arrives(m)
	if now, _ := c.steps(m); !hasFinalizer(now) || now.Status.Phase != v1.MigrationSucceeded || c.client.Get(t.Context(), source, &corev1.Pod{}) != nil {
		t.Error("the source's virt-handler was not waited for")
	}
	c.clock.SetTime(c.clock.Now().Add(releasePatience + time.Second))
	if now, _ := c.steps(m); hasFinalizer(now) || c.client.Get(t.Context(), source, &corev1.Pod{}) == nil {
		t.Error("the source pod is still there")
	}
}

// TestDeletedMigrationLeavesGuestAtSource: a migration that is deleted leaves the guest where it is, in each phase, and no target pod.
func TestDeletedMigrationLeavesGuestAtSource(t *testing.T) {
	for _, stage := range stages {
		c := newCluster(t)
		c.vm("a", "node1")
		m := c.migration("m", "a")
		c.comes(m, stage.phase)
		if err := c.client.Delete(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		now, vmi := c.steps(m)
		s := vmi.Status.MigrationState
		if now != nil || c.targets() != 0 || s.Decision != v1.DecisionSource || !s.Failed || !s.AbortRequested || s.AbortStatus != v1.MigrationAbortSucceeded {
			t.Errorf("cancelled in %s: %+v, %d targets, %+v", stage.phase, now, c.targets(), s)
		}
		if said := c.said(); !strings.HasSuffix(said, "SuccessfulAbortMigration SuccessfulAbortMigration") {
			t.Errorf("cancelled in %s: events %s", stage.phase, said)
		}
		// Another one may begin at once.
		c.comes(c.migration("n", "a"), v1.MigrationRunning)
	}
}

// TestCancelAfterTheMoveIsTooLate: a guest that runs on the target already has moved, whatever becomes of the migration.
func TestCancelAfterTheMoveIsTooLate(t *testing.T) {
	c := newCluster(t)
	c.vm("a", "node1")
	m := c.migration("m", "a")
	c.comes(m, v1.MigrationRunning)
	c.handlers(m, func(s *v1.VirtualMachineInstanceMigrationState) { s.Decision = v1.DecisionTarget })
	if err := c.client.Delete(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if now, vmi := c.steps(m); now == nil || vmi.Status.MigrationState.Ended() {
		t.Errorf("ended before the guest ran: %+v", vmi.Status.MigrationState)
	}
	c.arrives(m)
	c.steps(m)
	c.clock.SetTime(c.clock.Now().Add(releasePatience + time.Second))
	if now, vmi := c.steps(m); now != nil || vmi.Status.MigrationState.AbortStatus != v1.MigrationAbortFailed || vmi.Status.MigrationState.Failed || c.targets() != 1 {
		t.Errorf("%+v, %+v", now, vmi.Status.MigrationState)
	}
}

// TestFailedMigrationLeavesGuestAtSource: whatever goes wrong, the guest stays, the target pod goes, and the reason is said.
func TestFailedMigrationLeavesGuestAtSource(t *testing.T) {
	end := func(pod *corev1.Pod) {
		pod.Status.Phase = corev1.PodFailed
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: `{"reason":"QEMUExited","message":"no memory"}`}}}}
	}
	for name, f := range map[string]struct {
		in   v1.VirtualMachineInstanceMigrationPhase
		goes func(c *cluster, m *v1.VirtualMachineInstanceMigration)
		says string
	}{
		"no node takes it": {v1.MigrationScheduling, func(c *cluster, m *v1.VirtualMachineInstanceMigration) {
			c.target(m, func(pod *corev1.Pod) {
				pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes are available"}}
			})
			c.clock.SetTime(c.clock.Now().Add(unscheduledTimeout + time.Second))
		}, "no node took the target pod within 5m0s: 0/1 nodes are available"},
		"the target is never ready": {v1.MigrationPreparingTarget, func(c *cluster, m *v1.VirtualMachineInstanceMigration) {
			c.clock.SetTime(c.clock.Now().Add(prepareTimeout + time.Second))
		}, "the target was not ready within 15m0s"},
		"the target pod ends": {v1.MigrationRunning, func(c *cluster, m *v1.VirtualMachineInstanceMigration) { c.target(m, end) }, "the target pod has ended: no memory"},
		"the target cannot": {v1.MigrationTargetReady, func(c *cluster, m *v1.VirtualMachineInstanceMigration) {
			c.handlers(m, func(s *v1.VirtualMachineInstanceMigrationState) { s.TargetState.Failure = "no such CPU" })
		}, "no such CPU"},
		"the target ends because the source has given up": {v1.MigrationRunning, func(c *cluster, m *v1.VirtualMachineInstanceMigration) {
			c.handlers(m, func(s *v1.VirtualMachineInstanceMigrationState) {
				s.TargetState.Failure, s.SourceState.Failure, s.Decision = "QEMU has ended", "it takes too long", v1.DecisionSource
			})
		}, "it takes too long; the target says: QEMU has ended"},
		"the source cannot": {v1.MigrationRunning, func(c *cluster, m *v1.VirtualMachineInstanceMigration) {
			c.handlers(m, func(s *v1.VirtualMachineInstanceMigrationState) {
				s.SourceState.Failure, s.Decision = "it takes too long", v1.DecisionSource
			})
		}, "it takes too long"},
		"the guest ends": {v1.MigrationRunning, func(c *cluster, m *v1.VirtualMachineInstanceMigration) {
			vmi := &v1.VirtualMachineInstance{}
			if err := c.client.Get(c.t.Context(), types.NamespacedName{Namespace: "default", Name: "a"}, vmi); err != nil {
				c.t.Fatal(err)
			}
			vmi.Status.Phase = v1.Succeeded
			if err := c.client.Status().Update(c.t.Context(), vmi); err != nil {
				c.t.Fatal(err)
			}
		}, "the guest has ended"},
	} {
		c := newCluster(t)
		c.vm("a", "node1")
		m := c.migration("m", "a")
		c.comes(m, f.in)
		f.goes(c, m)
		now, vmi := c.steps(m)
		s := vmi.Status.MigrationState
		if now.Status.Phase != v1.MigrationFailed || now.Status.MigrationState.FailureReason != f.says || s.Decision != v1.DecisionSource || !s.Failed || s.AbortRequested || c.targets() != 0 || hasFinalizer(now) {
			t.Errorf("%s: %s, %d targets, %+v", name, now.Status.Phase, c.targets(), s)
		}
		if said := c.said(); !strings.HasSuffix(said, "FailedMigration FailedMigration") {
			t.Errorf("%s: events %s", name, said)
		}
	}
}

// TestMigrationEndsWithoutTheTargetsKubelet: the kubelet of the target's node does not answer, and the migration ends all the same.
func TestMigrationEndsWithoutTheTargetsKubelet(t *testing.T) {
	c := newCluster(t)
	c.vm("a", "node1")
	m := c.migration("m", "a")
	c.comes(m, v1.MigrationPreparingTarget)
	c.target(m, func(pod *corev1.Pod) { pod.Finalizers = []string{"example.com/stays"} })
	c.handlers(m, func(s *v1.VirtualMachineInstanceMigrationState) { s.Decision = v1.DecisionSource })
	if now, _ := c.steps(m); now.IsFinal() || c.targets() != 1 {
		t.Errorf("%s with the target still there", now.Status.Phase)
	}
	c.clock.SetTime(time.Now().Add(time.Hour)) // the deletion has the real time
	if now, _ := c.steps(m); now.Status.Phase != v1.MigrationFailed {
		t.Errorf("still %s", now.Status.Phase)
	}
}

// TestMigrationThatCannotBeginFails: what cannot begin fails, and says why.
func TestMigrationThatCannotBeginFails(t *testing.T) {
	for name, n := range map[string]struct {
		change func(*v1.VirtualMachineInstance)
		says   string
	}{
		"ended": {func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Failed }, "the guest has ended"},
		"bridge": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Bridge: &v1.InterfaceBridge{}}}
		}, "bridged"},
	} {
		c := newCluster(t)
		vmi := c.vm("a", "node1")
		n.change(vmi)
		status := vmi.Status
		if err := c.client.Update(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
		vmi.Status = status
		if err := c.client.Status().Update(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
		now, vmi := c.steps(c.migration("m", "a"))
		if now.Status.Phase != v1.MigrationFailed || !strings.Contains(now.Status.MigrationState.FailureReason, n.says) || vmi.Status.MigrationState != nil || hasFinalizer(now) {
			t.Errorf("%s: %s, %+v", name, now.Status.Phase, now.Status.MigrationState)
		}
	}
	c := newCluster(t)
	if now, _ := c.steps(c.migration("m", "b")); now.Status.Phase != v1.MigrationFailed || !strings.Contains(now.Status.MigrationState.FailureReason, `no VirtualMachineInstance "b"`) {
		t.Errorf("without a VMI: %+v", now.Status)
	}
}

// TestMigrationWaitsForOtherOrStartOrQuota: a migration waits for the VMI's other migration, for the guest's start, and for a quota.
func TestMigrationWaitsForOtherOrStartOrQuota(t *testing.T) {
	c := newCluster(t)
	c.vm("a", "node1")
	first, second := c.migration("m", "a"), c.migration("n", "a")
	c.comes(first, v1.MigrationRunning)
	if now, vmi := c.steps(second); now.Status.Phase != v1.MigrationPending || vmi.Status.MigrationState.MigrationUID != "m" || c.targets() != 1 {
		t.Errorf("%s beside another, %d targets", now.Status.Phase, c.targets())
	}
	c.arrives(first)
	c.steps(first)
	if now, _ := c.steps(second); now.Status.MigrationState != nil {
		t.Errorf("begun before the first one is cleaned up after: %+v", now.Status.MigrationState)
	}
	c.clock.SetTime(c.clock.Now().Add(releasePatience + time.Second))
	c.steps(first)
	c.refuse = apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "x", errors.New("exceeded quota"))
	now, _ := c.steps(second)
	if q := now.Status.Condition(v1.MigrationRejectedByResourceQuota); now.Status.Phase != v1.MigrationPending || q == nil || !strings.Contains(q.Message, "exceeded quota") {
		t.Errorf("with a full quota: %+v", now.Status)
	}
	c.refuse = nil
	if now, _ := c.steps(second); now.Status.Phase != v1.MigrationScheduling || now.Status.Condition(v1.MigrationRejectedByResourceQuota) != nil {
		t.Errorf("with room: %+v", now.Status)
	}
}

// TestOverdueMigrationsFreeTheirPlaces: launchers that say for ever that they have their guests do not keep the places of others.
func TestOverdueMigrationsFreeTheirPlaces(t *testing.T) {
	c := newCluster(t)
	for _, name := range []string{"a", "b", "c"} {
		c.vm(name, "node1")
	}
	for _, name := range []string{"a", "b"} { // as many as may leave a node at a time
		m := c.migration("of-"+name, name)
		c.comes(m, v1.MigrationRunning)
		c.handlers(m, func(s *v1.VirtualMachineInstanceMigrationState) { s.Decision = v1.DecisionTarget })
		c.steps(m)
	}
	waits := c.migration("of-c", "c")
	if now, _ := c.steps(waits); now.IsUnderway() {
		t.Fatal("a third migration begins beside two")
	}
	c.clock.SetTime(c.clock.Now().Add(overdue + time.Second))
	if now, _ := c.steps(waits); !now.IsUnderway() {
		t.Errorf("the third migration is %s", now.Status.Phase)
	}
	if now, vmi := c.steps(&v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "of-a"}, Spec: v1.VirtualMachineInstanceMigrationSpec{VMIName: "a"}}); now.IsFinal() || vmi.Status.MigrationState.Decision != v1.DecisionTarget {
		t.Errorf("the overdue migration is %s", now.Status.Phase)
	}
}

// TestTargetPodThatDoesNotEndHoldsUpNobody: a target pod has the VMI's grace period, which may be years, and a launcher that is a tenant's.
func TestTargetPodThatDoesNotEndHoldsUpNobody(t *testing.T) {
	c := newCluster(t)
	c.vm("a", "node1")
	m := c.migration("m", "a")
	c.comes(m, v1.MigrationRunning)
	c.target(m, func(pod *corev1.Pod) {
		pod.Finalizers, pod.Spec.TerminationGracePeriodSeconds = []string{"example.com/stays"}, ptr.To[int64](1<<31)
		if got := graceOf(pod); time.Duration(got)*time.Second != targetGrace {
			t.Errorf("the target pod has %d s to end", got)
		}
	})
	c.handlers(m, func(s *v1.VirtualMachineInstanceMigrationState) { s.Decision = v1.DecisionSource })
	if now, _ := c.steps(m); now.IsFinal() || c.targets() != 1 {
		t.Fatalf("the migration is %s beside %d target pods", now.Status.Phase, c.targets())
	}
	c.clock.SetTime(c.clock.Now().Add(overdue + time.Second))
	if now, _ := c.steps(m); now.Status.Phase != v1.MigrationFailed || c.targets() != 1 {
		t.Errorf("the migration is %s beside %d target pods", now.Status.Phase, c.targets())
	}
}

// TestNewestFiveEndedMigrationsAreKept: of a VMI's ended migrations, the newest five are kept.
func TestNewestFiveEndedMigrationsAreKept(t *testing.T) {
	c := newCluster(t)
	for i := range kept + 3 {
		c.clock.SetTime(c.clock.Now().Add(time.Minute))
		c.steps(c.migration(fmt.Sprint("m", i), "gone"))
	}
	var all v1.VirtualMachineInstanceMigrationList
	if err := c.client.List(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range all.Items {
		names = append(names, m.Name)
	}
	if want := []string{"m3", "m4", "m5", "m6", "m7"}; !slices.Equal(names, want) {
		t.Errorf("kept are %v, want %v", names, want)
	}
}

// TestWhichMigrationBeginsNext: the limits of the cluster and of each node hold, and the first in priority and age begins first.
func TestWhichMigrationBeginsNext(t *testing.T) {
	type m struct {
		name, node string
		priority   v1.MigrationPriority
		phase      v1.VirtualMachineInstanceMigrationPhase
		deleted    bool
		refused    bool
	}
	limit := func(parallel, outbound uint32) *v1.MigrationConfiguration {
		return &v1.MigrationConfiguration{ParallelMigrationsPerCluster: &parallel, ParallelOutboundMigrationsPerNode: &outbound}
	}
	for name, c := range map[string]struct {
		config *v1.MigrationConfiguration
		all    []m
		want   string
	}{
		"nothing":            {nil, nil, ""},
		"two of a node":      {nil, []m{{name: "a", node: "1"}, {name: "b", node: "1"}, {name: "c", node: "1"}, {name: "d", node: "2"}}, "a b d"},
		"five of a cluster":  {nil, []m{{name: "a", node: "1"}, {name: "b", node: "2"}, {name: "c", node: "3"}, {name: "d", node: "4"}, {name: "e", node: "5"}, {name: "f", node: "6"}}, "a b c d e"},
		"others run":         {nil, []m{{name: "a", node: "1", phase: v1.MigrationRunning}, {name: "b", node: "1"}, {name: "c", node: "1"}}, "b"},
		"others have ended":  {limit(1, 1), []m{{name: "a", node: "1", phase: v1.MigrationSucceeded}, {name: "b", node: "1"}, {name: "c", node: "1", phase: v1.MigrationPending}}, "b"},
		"by priority":        {limit(2, 2), []m{{name: "a", node: "1", priority: v1.PrioritySystemMaintenance}, {name: "b", node: "2"}, {name: "c", node: "3", priority: v1.PrioritySystemCritical}}, "c b"},
		"two of a VMI":       {nil, []m{{name: "a", node: "1"}, {name: "a'", node: "1"}, {name: "b", node: "1"}}, "a b"},
		"a quota comes last": {limit(1, 1), []m{{name: "a", node: "1", refused: true}, {name: "b", node: "2", priority: v1.PrioritySystemMaintenance}}, "b"},
		"deleted or nowhere": {nil, []m{{name: "a", node: "1", deleted: true}, {name: "b", node: ""}, {name: "c", node: "1"}}, "c"},
	} {
		nodes := map[string]string{}
		var all []v1.VirtualMachineInstanceMigration
		for i, x := range c.all {
			o := v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Name: x.name, UID: types.UID(x.name), CreationTimestamp: metav1.Unix(int64(i), 0)}}
			o.Spec.VMIName = strings.TrimRight(x.name, "'")
			if x.refused {
				o.Status.Conditions = []v1.VirtualMachineInstanceMigrationCondition{{Type: v1.MigrationRejectedByResourceQuota}}
			}
			o.Status.Phase = x.phase
			if x.priority != "" {
				o.Spec.Priority = &x.priority
			}
			if x.deleted {
				o.DeletionTimestamp = &metav1.Time{}
			}
			nodes[x.name] = x.node
			all = append(all, o)
		}
		var got []string
		for _, uid := range next(all, func(m *v1.VirtualMachineInstanceMigration) string { return nodes[m.Name] }, c.config) {
			got = append(got, string(uid))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
}

// TestUsersMigrationsTakeHalfOfThePlaces: migrations that any user of a VM can cause take half of the places, and one for each namespace.
func TestUsersMigrationsTakeHalfOfThePlaces(t *testing.T) {
	low := v1.PrioritySystemMaintenance
	one := func(name, namespace string, updates bool, phase v1.VirtualMachineInstanceMigrationPhase) v1.VirtualMachineInstanceMigration {
		m := v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, UID: types.UID(name)}}
		m.Spec.VMIName, m.Spec.Priority, m.Status.Phase = name, &low, phase
		if updates {
			m.Annotations = map[string]string{v1.VolumeUpdateAnnotation: "x"}
		}
		return m
	}
	of := func(m v1.VirtualMachineInstanceMigration) v1.VirtualMachineInstanceMigration {
		m.Spec.Priority = nil
		return m
	}
	type all = []v1.VirtualMachineInstanceMigration
	for name, c := range map[string]struct {
		all  all
		node string
		want string
	}{
		"half of the places":       {all{one("a", "1", true, ""), one("b", "2", true, ""), one("c", "3", true, "")}, "", "a b"},
		"one of a namespace":       {all{one("a", "1", true, ""), one("b", "1", true, ""), one("c", "2", true, "")}, "", "a c"},
		"another runs":             {all{one("a", "1", true, v1.MigrationRunning), one("b", "1", true, ""), one("c", "2", true, "")}, "", "c"},
		"launchers":                {all{one("a", "1", false, ""), one("b", "1", false, ""), one("c", "1", false, "")}, "", "a b"},
		"one from a node":          {all{one("a", "1", true, ""), one("b", "2", true, "")}, "node", "a"},
		"others take what is left": {all{one("a", "1", true, v1.MigrationRunning), one("b", "2", true, v1.MigrationRunning), one("c", "3", true, ""), of(one("d", "1", false, "")), of(one("e", "1", false, ""))}, "", "d e"},
	} {
		var got []string
		for _, uid := range next(c.all, func(m *v1.VirtualMachineInstanceMigration) string { return cmp.Or(c.node, m.Name) }, (&v1.KubeVirtConfiguration{}).Migrations()) {
			got = append(got, string(uid))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
}

// TestMigrationWaitsForTheLastOnesResult: a migration does not begin before the VMI says where the last one has brought the guest.
func TestMigrationWaitsForTheLastOnesResult(t *testing.T) {
	for _, decision := range []v1.MigrationDecision{v1.DecisionTarget, v1.DecisionSource} {
		c := newCluster(t)
		vmi := c.vm("a", "node1")
		vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "l", SourceNode: "node1", SourcePod: vmi.LauncherPod(), TargetNode: "node2", TargetPod: "target", Decision: decision, Completed: true}
		if decision == v1.DecisionSource {
			vmi.Status.LauncherPod, vmi.Status.NodeName = "target", "node2"
		}
		if err := c.client.Status().Update(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
		m := c.migration("m", "a")
		if _, vmi := c.steps(m); vmi.Status.MigrationState.MigrationUID != "l" {
			t.Errorf("decided for %s: begun from %+v", decision, vmi.Status.MigrationState)
		}
		vmi = mustGet(t, c)
		vmi.Status.Settle()
		if err := c.client.Status().Update(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
		if _, vmi := c.steps(m); vmi.Status.MigrationState.MigrationUID != "m" || vmi.Status.MigrationState.SourceNode != vmi.Status.NodeName {
			t.Errorf("decided for %s: not begun", decision)
		}
	}
}

// TestMigrationRemovedByForceEnds: a migration whose object somebody has removed by force ends all the same.
func TestMigrationRemovedByForceEnds(t *testing.T) {
	c := newCluster(t)
	c.vm("a", "node1")
	m := c.migration("m", "a")
	c.comes(m, v1.MigrationRunning)
	now, _ := c.steps(m)
	now.Finalizers = nil
	if err := c.client.Update(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	if err := c.client.Delete(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	for _, queued := range c.ofVMI(t.Context(), mustGet(t, c)) {
		if queued.Name == "m" {
			c.steps(m)
		}
	}
	if s := mustGet(t, c).Status.MigrationState; !s.Ended() || s.Decision != v1.DecisionSource || c.targets() != 0 {
		t.Errorf("%d targets, %+v", c.targets(), s)
	}
	c.comes(c.migration("n", "a"), v1.MigrationRunning)
}

func mustGet(t *testing.T, c *cluster) *v1.VirtualMachineInstance {
	t.Helper()
	vmi := &v1.VirtualMachineInstance{}
	if err := c.client.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: "a"}, vmi); err != nil {
		t.Fatal(err)
	}
	return vmi
}

// TestTargetHasTimeWhenSourceIsLost: the target may have the only copy of a guest whose source is gone, and has some time to say so.
func TestTargetHasTimeWhenSourceIsLost(t *testing.T) {
	for name, lose := range map[string]func(c *cluster, pod *corev1.Pod) error{
		"gone": func(c *cluster, pod *corev1.Pod) error { return c.client.Delete(c.t.Context(), pod) },
		"left": func(c *cluster, pod *corev1.Pod) error {
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: `{"reason":"Migrated"}`}}}}
			return c.client.Status().Update(c.t.Context(), pod)
		},
	} {
		c := newCluster(t)
		vmi := c.vm("a", "node1")
		m := c.migration("m", "a")
		c.comes(m, v1.MigrationRunning)
		pod := &corev1.Pod{}
		if err := c.client.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: vmi.LauncherPod()}, pod); err != nil {
			t.Fatal(err)
		}
		if err := lose(c, pod); err != nil {
			t.Fatal(err)
		}
		if err := c.client.Delete(t.Context(), m); err != nil { // cancelled, too
			t.Fatal(err)
		}
		if _, vmi := c.steps(m); vmi.Status.MigrationState.Decision != "" {
			t.Errorf("%s: decided for the source at once", name)
		}
		c.clock.SetTime(c.clock.Now().Add(lostTimeout + time.Second))
		if _, vmi := c.steps(m); vmi.Status.MigrationState.Decision != v1.DecisionSource || vmi.Status.MigrationState.FailureReason != "the source pod is gone" {
			t.Errorf("%s: %+v", name, vmi.Status.MigrationState)
		}
	}
}

// TestRefusedTargetPodIsGivenUp: what cannot be made is given up, at once or after a while.
func TestRefusedTargetPodIsGivenUp(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, r := range map[string]struct {
		err   error
		waits time.Duration
		says  string
	}{
		"invalid":   {apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "x", nil), 0, "cannot be made"},
		"quota":     {apierrors.NewForbidden(pods, "x", errors.New("exceeded quota")), prepareTimeout + time.Second, "exceeded quota"},
		"contended": {apierrors.NewConflict(pods, "x", errors.New("the quota is in use")), -1, ""},
		"stranger":  {apierrors.NewAlreadyExists(pods, "x"), 0, "is in the way"},
	} {
		c := newCluster(t)
		c.vm("a", "node1")
		m := c.migration("m", "a")
		c.refuse = r.err
		now, _ := c.steps(m)
		if r.waits != 0 {
			if now.Status.Phase != v1.MigrationPending {
				t.Errorf("%s: %s at once", name, now.Status.Phase)
			}
			c.clock.SetTime(c.clock.Now().Add(max(r.waits, 0)))
			now, _ = c.steps(m)
		}
		if r.waits < 0 {
			c.refuse = nil
			now, _ = c.steps(m)
			if now.Status.Phase != v1.MigrationScheduling {
				t.Errorf("%s: %s afterwards", name, now.Status.Phase)
			}
			continue
		}
		if now.Status.Phase != v1.MigrationFailed || !strings.Contains(now.Status.MigrationState.FailureReason, r.says) {
			t.Errorf("%s: %s, %+v", name, now.Status.Phase, now.Status.MigrationState)
		}
	}
}

// TestGuestOfEndedTargetComesBack: the target has ended before anybody knew that the guest ran there. The source has the guest again, if the
// guest wrote to no disk that both have.
func TestGuestOfEndedTargetComesBack(t *testing.T) {
	for _, shared := range []bool{false, true} {
		c := newCluster(t)
		vmi := c.vm("a", "node1")
		if shared {
			vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "d"}}
			vmi.Spec.Volumes = []v1.Volume{{Name: "d", HostDisk: &v1.HostDisk{Shared: ptr.To(true)}}}
			if err := c.client.Update(t.Context(), vmi); err != nil {
				t.Fatal(err)
			}
		}
		m := c.migration("m", "a")
		c.comes(m, v1.MigrationRunning)
		c.handlers(m, func(s *v1.VirtualMachineInstanceMigrationState) { s.Decision = v1.DecisionTarget })
		c.target(m, func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed })
		now, vmi := c.steps(m)
		if s := vmi.Status.MigrationState; (s.Decision == v1.DecisionSource) == shared || now.IsFinal() == shared {
			t.Errorf("shared %v: decided for %s, the migration is %s", shared, s.Decision, now.Status.Phase)
		}
	}
}

// goesOn writes what the source's virt-handler writes before the guest goes on by post-copy.
func (c *cluster) goesOn(m *v1.VirtualMachineInstanceMigration) {
	c.t.Helper()
	c.handlers(m, func(s *v1.VirtualMachineInstanceMigrationState) {
		s.MigrationConfiguration = &v1.MigrationConfiguration{AllowPostCopy: ptr.To(true)}
		s.SourceState.PostCopyTimestamp = ptr.To(metav1.NewTime(c.clock.Now()))
	})
}

// TestPostCopyHasMovedWithAllOfTheMemory: a guest that goes on by post-copy has moved when all of its memory is on the target. Nobody cancels that.
func TestPostCopyHasMovedWithAllOfTheMemory(t *testing.T) {
	c := newCluster(t)
	c.vm("a", "node1")
	m := c.migration("m", "a")
	c.comes(m, v1.MigrationRunning)
	c.said()
	c.goesOn(m)
	if now, vmi := c.steps(m); vmi.Status.MigrationState.Mode != v1.MigrationPostCopy || now.Status.MigrationState.Mode != v1.MigrationPostCopy {
		t.Errorf("%+v", vmi.Status.MigrationState)
	}
	if said := c.said(); said != "PostCopy PostCopy" {
		t.Errorf("events %s", said)
	}
	if err := c.client.Delete(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	now, vmi := c.steps(m)
	if cancel := now.Status.Condition(v1.MigrationAbortRequested); vmi.Status.MigrationState.Decision != "" || cancel == nil || !strings.Contains(cancel.Message, "cannot be cancelled") {
		t.Errorf("%+v, %+v", vmi.Status.MigrationState, now.Status.Conditions)
	}
	c.handlers(m, func(s *v1.VirtualMachineInstanceMigrationState) { s.Decision = v1.DecisionTarget })
	if now, _ := c.steps(m); now == nil || now.IsFinal() {
		t.Errorf("ended before the memory has arrived: %+v", now)
	}
	c.arrives(m)
	c.steps(m)
	c.clock.SetTime(c.clock.Now().Add(releasePatience + time.Second))
	if now, vmi := c.steps(m); now != nil || vmi.Status.MigrationState.AbortStatus != v1.MigrationAbortFailed || vmi.Status.MigrationState.Failed || vmi.Status.MigrationState.Mode != v1.MigrationPostCopy {
		t.Errorf("%+v, %+v", now, vmi.Status.MigrationState)
	}
}

// TestUndecidedPostCopyEndsInTime: a guest that left by post-copy does not run nowhere for ever, and a source's node cannot pretend that a guest did.
func TestUndecidedPostCopyEndsInTime(t *testing.T) {
	c := newCluster(t)
	c.vm("a", "node1")
	m := c.migration("m", "a")
	c.comes(m, v1.MigrationRunning)
	c.goesOn(m)
	c.clock.SetTime(c.clock.Now().Add(undecidedTimeout))
	if _, vmi := c.steps(m); vmi.Status.MigrationState.Decision != "" {
		t.Errorf("decided too early: %+v", vmi.Status.MigrationState)
	}
	c.clock.SetTime(c.clock.Now().Add(2 * time.Second))
	if _, vmi := c.steps(m); vmi.Status.MigrationState.Decision != v1.DecisionSource {
		t.Errorf("not decided: %+v", vmi.Status.MigrationState)
	}
	c.vm("b", "node1")
	ahead := c.migration("ahead", "b") // the clock of the source's node is ahead by years
	c.comes(ahead, v1.MigrationRunning)
	c.goesOn(ahead)
	c.handlers(ahead, func(s *v1.VirtualMachineInstanceMigrationState) {
		s.SourceState.PostCopyTimestamp = ptr.To(metav1.NewTime(c.clock.Now().AddDate(10, 0, 0)))
	})
	c.clock.SetTime(c.clock.Now().Add(copyTimeout + undecidedTimeout + time.Minute))
	if _, vmi := c.steps(ahead); vmi.Status.MigrationState.Decision != v1.DecisionSource {
		t.Errorf("not decided after a day: %+v", vmi.Status.MigrationState)
	}
	forged := &v1.VirtualMachineInstanceMigrationState{SourceState: &v1.MigrationSourceState{PostCopyTimestamp: ptr.To(metav1.Unix(1, 0))}}
	if forged.PostCopy() {
		t.Error("a migration that may not go on by post-copy does")
	}
}

// TestGuestThatRanByPostCopyDoesNotComeBack: a guest of which the target has ended does not come back to the source once it ran on the target, and it is
// decided for the source if it did not.
func TestGuestThatRanByPostCopyDoesNotComeBack(t *testing.T) {
	end := func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }
	c := newCluster(t)
	c.vm("a", "node1")
	m := c.migration("m", "a")
	c.comes(m, v1.MigrationRunning)
	c.goesOn(m)
	c.handlers(m, func(s *v1.VirtualMachineInstanceMigrationState) { s.Decision = v1.DecisionTarget })
	c.target(m, end)
	if _, vmi := c.steps(m); vmi.Status.MigrationState.Decision != v1.DecisionTarget {
		t.Errorf("the guest runs twice: %+v", vmi.Status.MigrationState)
	}
	vmi := &v1.VirtualMachineInstance{}
	if err := c.client.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: "a"}, vmi); err != nil {
		t.Fatal(err)
	}
	vmi.Status.Phase = v1.Failed // the VMI's controller has seen the end of the target pod
	if err := c.client.Status().Update(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	if now, _ := c.steps(m); now.Status.Phase != v1.MigrationFailed || !strings.Contains(now.Status.MigrationState.FailureReason, "before all of its memory") {
		t.Errorf("%+v", now.Status)
	}
	refused := c.migration("refused", "c")
	c.vm("c", "node1")
	c.comes(refused, v1.MigrationRunning)
	c.goesOn(refused)
	c.handlers(refused, func(s *v1.VirtualMachineInstanceMigrationState) { s.Decision = v1.DecisionTarget })
	c.target(refused, func(pod *corev1.Pod) {
		end(pod)
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "compute", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: `{"reason":"StartFailed"}`}}}}
	})
	if _, vmi := c.steps(refused); vmi.Status.MigrationState.Decision != v1.DecisionSource {
		t.Errorf("a whole guest that the target did not let run is not given back: %+v", vmi.Status.MigrationState)
	}
	early := c.migration("early", "b")
	c.vm("b", "node1")
	c.comes(early, v1.MigrationRunning)
	c.goesOn(early)
	c.target(early, end)
	if _, vmi := c.steps(early); vmi.Status.MigrationState.Decision != v1.DecisionSource {
		t.Errorf("%+v", vmi.Status.MigrationState)
	}
}

// TestMigrationSaysWhyItHasNoPostCopy: the migration says why it cannot go on by post-copy.
func TestMigrationSaysWhyItHasNoPostCopy(t *testing.T) {
	c := newCluster(t)
	c.vm("a", "node1")
	m := c.migration("m", "a")
	c.comes(m, v1.MigrationRunning)
	c.said()
	c.handlers(m, func(s *v1.VirtualMachineInstanceMigrationState) {
		s.SourceState.PostCopyRefused = "the target: no device"
	})
	now, _ := c.steps(m)
	if refused := now.Status.Condition(v1.MigrationPostCopyRefused); refused == nil || !strings.Contains(refused.Message, "no device") {
		t.Errorf("%+v", now.Status.Conditions)
	}
	if said := c.said(); said != "PostCopyRefused PostCopyRefused" {
		t.Errorf("events %s", said)
	}
}

// TestMigrationEndsAtOnceWithoutAnotherNode: where no other node could take the guest, the migration says so before it makes a pod.
func TestMigrationEndsAtOnceWithoutAnotherNode(t *testing.T) {
	other := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b", Labels: map[string]string{v1.SchedulableLabel: "true", "zone": "a"}}}
	for name, c := range map[string]struct {
		nodes []corev1.Node
		says  string
		added map[string]string
	}{
		"no selector":     {[]corev1.Node{other}, "addedNodeSelector selects no node", map[string]string{"zone": "a b"}},
		"another zone":    {[]corev1.Node{other}, "there is no other node that the guest may be on", map[string]string{"zone": "b"}},
		"its zone":        {[]corev1.Node{other}, "", map[string]string{"zone": "a"}},
		"its own node":    {nil, "there is no other node that the guest may be on", nil},
		"no virt-handler": {[]corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "b"}}}, "there is no other node that the guest may be on", nil},
		"cordoned": {[]corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "b", Labels: map[string]string{v1.SchedulableLabel: "true"}}, Spec: corev1.NodeSpec{Unschedulable: true}}},
			"no other node takes the guest: 1 are cordoned", nil},
		"not answering": {[]corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "b", Labels: map[string]string{v1.SchedulableLabel: "false"}},
			Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "node.kubernetes.io/not-ready", Effect: corev1.TaintEffectNoSchedule}}}}}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster(t)
			cluster.onTwoNodes()
			cluster.make(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", Labels: map[string]string{v1.SchedulableLabel: "true"}}})
			for _, n := range c.nodes {
				cluster.make(&n)
			}
			cluster.vm("a", "node1")
			wanted := cluster.migration("m", "a")
			wanted.Spec.AddedNodeSelector = c.added
			if err := cluster.client.Update(t.Context(), wanted); err != nil {
				t.Fatal(err)
			}
			m, _ := cluster.steps(wanted)
			if ended := m.Status.Phase == v1.MigrationFailed; ended != (c.says != "") || ended && !strings.Contains(m.Status.MigrationState.FailureReason, c.says) {
				t.Errorf("%s: %+v", m.Status.Phase, m.Status.MigrationState)
			}
		})
	}
}
