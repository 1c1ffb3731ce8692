package vmi

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// cluster is a Reconciler on an API server that a test can make fail.
type cluster struct {
	*Reconciler
	t      *testing.T
	client client.WithWatch
	vmi    *v1.VirtualMachineInstance
}

// newCluster returns a cluster with the VMI of a case, admitted before, in a phase.
func newCluster(t *testing.T, phase v1.VirtualMachineInstancePhase, faults interceptor.Funcs,
	more ...client.Object) *cluster {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), storagev1.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	vmi := load(t, "testdata/minimal")
	vmi.Finalizers, vmi.CreationTimestamp = []string{v1.VMIFinalizer}, metav1.Unix(900, 0)
	vmi.Status.Phase = phase
	c := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(vmi).
		WithObjects(append(more, vmi)...).WithInterceptorFuncs(faults).Build()
	return &cluster{t: t, client: c, vmi: vmi, Reconciler: &Reconciler{
		Client: c, Live: c, Events: events.NewFakeRecorder(100), Config: testConfig,
		Clock: clocktesting.NewFakePassiveClock(time.Unix(1000, 0)),
	}}
}

// on returns a turn of a VMI with a pod, or nil.
func on(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) *turn {
	return &turn{world: world{vmi: vmi, pod: pod}, before: vmi.DeepCopy()}
}

func (c *cluster) reconcile() error {
	c.t.Helper()
	_, err := c.Reconcile(context.Background(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(c.vmi)})
	return err
}

// later reconciles and returns how long the next attempt is put off.
func (c *cluster) later() time.Duration {
	c.t.Helper()
	result, err := c.Reconcile(context.Background(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(c.vmi)})
	if err != nil {
		c.t.Error(err)
	}
	return result.RequeueAfter
}

func (c *cluster) status() string {
	c.t.Helper()
	vmi := &v1.VirtualMachineInstance{}
	if err := c.client.Get(context.Background(), client.ObjectKeyFromObject(c.vmi), vmi); err != nil {
		c.t.Fatal(err)
	}
	return summary(vmi.Status)
}

func (c *cluster) pods() int {
	c.t.Helper()
	var pods corev1.PodList
	if err := c.client.List(context.Background(), &pods); err != nil {
		c.t.Fatal(err)
	}
	return len(pods.Items)
}

const created = "Scheduling  ; LiveMigratable=True/Migratable Ready=False/GuestNotRunning"

func TestReconcileCreatesOnce(t *testing.T) {
	c := newCluster(t, "", interceptor.Funcs{})
	for range 3 {
		if err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
		if got := c.status(); got != created || c.pods() != 1 {
			t.Errorf("status %s, %d pods", got, c.pods())
		}
	}
}

// TestReconcileReportsOnce: a pod that the scheduler has not looked at yet is reported with what the scheduler
// says of it, in one write. Without a word of the scheduler's it is reported soon.
func TestReconcileReportsOnce(t *testing.T) {
	for name, c := range map[string]struct {
		change func(pod *corev1.Pod)
		age    time.Duration
		wait   bool
		want   string
	}{
		"new":                             {func(*corev1.Pod) {}, 0, true, "  ;"},
		"by a late clock":                 {func(*corev1.Pod) {}, -time.Second, true, "  ;"},
		"waits":                           {func(*corev1.Pod) {}, 3 * time.Second, false, created},
		"by a clock that is an hour late": {func(*corev1.Pod) {}, -time.Hour, false, created},
		"bound": {func(pod *corev1.Pod) { pod.Spec.NodeName = "node1" }, 0, false,
			"Scheduling node1 ; LiveMigratable=True/Migratable Ready=False/GuestNotRunning"},
		"no node": {func(pod *corev1.Pod) {
			pod.Status.Conditions = []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable"}}
		}, 0, false,
			"Scheduling  ; LiveMigratable=True/Migratable PodScheduled=False/Unschedulable Ready=False/GuestNotRunning"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := Pod(load(t, "testdata/minimal"), testConfig)
			pod.UID, pod.CreationTimestamp = "pod-uid", metav1.NewTime(time.Unix(1000, 0).Add(-c.age))
			c.change(pod)
			cl := newCluster(t, "", interceptor.Funcs{}, pod)
			if wait := cl.later(); (wait > 0) != c.wait {
				t.Errorf("comes back after %v", wait)
			}
			if got := cl.status(); got != c.want {
				t.Errorf("status %q, want %q", got, c.want)
			}
		})
	}
}

// TestReconcileAfterItsOwnWrite: the controller decides nothing by a cache that has not seen the last status.
// The write of the same would be refused.
func TestReconcileAfterItsOwnWrite(t *testing.T) {
	writes := 0
	c := newCluster(t, "", interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, w client.Client, sub string, o client.Object, p client.Patch,
			opts ...client.SubResourcePatchOption) error {
			writes++
			return w.SubResource(sub).Patch(ctx, o, p, opts...)
		},
	})
	old := &v1.VirtualMachineInstance{}
	if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(c.vmi), old); err != nil {
		t.Fatal(err)
	}
	behind := true
	c.Client = interceptor.NewClient(c.client, interceptor.Funcs{
		Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			if vmi, ok := o.(*v1.VirtualMachineInstance); ok && behind {
				old.DeepCopyInto(vmi)
				return nil
			}
			return w.Get(ctx, key, o, opts...)
		},
	})
	for range 3 {
		if err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
	}
	if writes != 1 {
		t.Errorf("%d writes by a cache that is behind", writes)
	}
	behind = false
	pods := &corev1.PodList{}
	if err := c.client.List(t.Context(), pods); err != nil || len(pods.Items) != 1 {
		t.Fatal(pods.Items, err)
	}
	pods.Items[0].Spec.NodeName = "node1"
	if err := c.client.Update(t.Context(), &pods.Items[0]); err != nil {
		t.Fatal(err)
	}
	if err := c.reconcile(); err != nil || writes != 2 || !strings.HasPrefix(c.status(), "Scheduling node1") {
		t.Errorf("%v, %d writes, status %s", err, writes, c.status())
	}
}

// strange returns a pod of the launcher's name that the VMI does not control.
func strange(t *testing.T) *corev1.Pod {
	pod := Pod(load(t, "testdata/minimal"), testConfig)
	pod.UID, pod.OwnerReferences = "strange", nil
	pod.Spec.NodeName = "node1"
	return pod
}

func TestReconcileStrangePodInTheWay(t *testing.T) {
	named := func(change func(owner *metav1.OwnerReference)) *corev1.Pod {
		pod := Pod(load(t, "testdata/minimal"), testConfig)
		pod.UID = "strange"
		change(&pod.OwnerReferences[0])
		return pod
	}
	for what, pod := range map[string]*corev1.Pod{
		"no owner":       strange(t),
		"another UID":    named(func(o *metav1.OwnerReference) { o.UID = "other" }),
		"another kind":   named(func(o *metav1.OwnerReference) { o.Kind = "Foo" }),
		"another group":  named(func(o *metav1.OwnerReference) { o.APIVersion = "foo.example/v1" }),
		"no controller":  named(func(o *metav1.OwnerReference) { o.Controller = nil }),
		"another's name": named(func(o *metav1.OwnerReference) { o.Name = "other" }),
	} {
		t.Run(what, func(t *testing.T) {
			c := newCluster(t, "", interceptor.Funcs{}, pod)
			if after := c.later(); after <= 0 {
				t.Error("it is not tried again")
			}
			if s := c.get().Status.Condition(v1.ConditionSynchronized); s == nil ||
				!strings.Contains(s.Message, "is in the way; delete it: ") {
				t.Errorf("condition %+v", s)
			}
			want := "Pending  ; LiveMigratable=True/Migratable Ready=False/PodNotExists Synchronized=False/FailedCreate"
			if got := c.status(); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

// TestReconcileCacheBehind: the pod counts as there while the cache is behind, and only the API server knows of
// the pod.
func TestReconcileCacheBehind(t *testing.T) {
	for _, phase := range []v1.VirtualMachineInstancePhase{"", v1.Running} {
		pod := Pod(load(t, "testdata/minimal"), testConfig)
		pod.UID, pod.Spec.NodeName = "pod-uid", "node1"
		pod.Status = podIn(corev1.PodRunning, running()).Status
		c := newCluster(t, phase, interceptor.Funcs{}, pod)
		c.Client = interceptor.NewClient(c.client, interceptor.Funcs{
			Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object,
				opts ...client.GetOption) error {
				if _, ok := o.(*corev1.Pod); ok {
					return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, key.Name)
				}
				return w.Get(ctx, key, o, opts...)
			},
		})
		if err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
		want := v1.Scheduled
		if phase == v1.Running {
			want = v1.Running
		}
		if got := c.status(); !strings.HasPrefix(got, string(want)+" node1 ") {
			t.Errorf("from %q: %s, want %s", phase, got, want)
		}
	}
}

func TestReconcilePodGone(t *testing.T) {
	for _, phase := range []v1.VirtualMachineInstancePhase{v1.Scheduling, v1.Scheduled, v1.Running} {
		c := newCluster(t, phase, interceptor.Funcs{})
		if err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
		if got := c.status(); got != "Failed  PodDeleted; Ready=False/PodDeleted" || c.pods() != 0 {
			t.Errorf("from %s: %s, %d pods", phase, got, c.pods())
		}
	}
}

// TestReconcilePodUnknown: only "not found" ends a VMI. Every other error must not end it.
func TestReconcilePodUnknown(t *testing.T) {
	down := apierrors.NewServiceUnavailable("down")
	c := newCluster(t, v1.Running, interceptor.Funcs{
		Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			if _, ok := o.(*corev1.Pod); ok {
				return down
			}
			return w.Get(ctx, key, o, opts...)
		},
	})
	if err := c.reconcile(); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("error %v", err)
	}
	if got := c.status(); got != "Running  ;" {
		t.Errorf("status %s", got)
	}
}

// TestReconcileConflict: a conflict is somebody else's write, and no error. It brings the VMI back.
func TestReconcileConflict(t *testing.T) {
	conflicts := 0
	c := newCluster(t, "", interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, w client.Client, sub string, o client.Object, p client.Patch,
			opts ...client.SubResourcePatchOption) error {
			if conflicts++; conflicts == 1 {
				return apierrors.NewConflict(schema.GroupResource{Resource: "virtualmachineinstances"}, o.GetName(),
					errors.New("changed"))
			}
			return w.SubResource(sub).Patch(ctx, o, p, opts...)
		},
	})
	if err := c.reconcile(); err != nil {
		t.Errorf("error %v", err)
	}
	if err := c.reconcile(); err != nil || conflicts != 2 {
		t.Errorf("error %v, %d writes", err, conflicts)
	}
	if got := c.status(); !strings.HasPrefix(got, "Scheduling") || c.pods() != 1 {
		t.Errorf("status %s, %d pods", got, c.pods())
	}
}

// TestReconcileCreateRefused: the VMI says once that its pod cannot be created, and the controller tries again.
func TestReconcileCreateRefused(t *testing.T) {
	refuse := true
	c := newCluster(t, "", interceptor.Funcs{
		Create: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if refuse {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, o.GetName(), errors.New("quota"))
			}
			return w.Create(ctx, o, opts...)
		},
	})
	if after := c.later(); after < 5*time.Second || after > 5*time.Minute {
		t.Errorf("tried again after %s", after)
	}
	if got := c.status(); !strings.HasSuffix(got, "Synchronized=False/FailedCreate") {
		t.Errorf("status %s", got)
	}
	refuse = false
	if err := c.reconcile(); err != nil {
		t.Fatal(err)
	}
	if got := c.status(); !strings.HasPrefix(got, "Scheduling") || strings.Contains(got, "Synchronized") || c.pods() != 1 {
		t.Errorf("status %s, %d pods", got, c.pods())
	}
}

func TestReconcileRejectedPodIsReplaced(t *testing.T) {
	// That the pod was made is not in the status where its write failed.
	for _, phase := range []v1.VirtualMachineInstancePhase{"", v1.Pending, v1.Scheduling} {
		pod := Pod(load(t, "testdata/minimal"), testConfig)
		pod.UID, pod.CreationTimestamp = "rejected", metav1.Unix(900, 0)
		pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: v1.ReasonRejected, Message: "no devices"}
		c := newCluster(t, phase, interceptor.Funcs{}, pod)
		if err := c.reconcile(); err != nil || c.pods() != 1 || !strings.Contains(c.status(), v1.ReasonRejected) {
			t.Fatalf("%q: error %v, %d pods, status %s, want it noted first", phase, err, c.pods(), c.status())
		}
		if err := c.reconcile(); err != nil || c.pods() != 0 {
			t.Fatalf("%q: error %v, %d pods, want it deleted", phase, err, c.pods())
		}
		if err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
		if got := c.status(); c.pods() != 1 || !strings.HasPrefix(got, "Scheduling") {
			t.Errorf("%q: status %s, %d pods, want another", phase, got, c.pods())
		}
	}
}

// TestReconcileReplacementRefused: a pod that is to take a rejected one's place may
// be refused for a while, by a quota say, and is made when it is not any more.
func TestReconcileReplacementRefused(t *testing.T) {
	pod := Pod(load(t, "testdata/minimal"), testConfig)
	pod.UID, pod.CreationTimestamp = "rejected", metav1.Unix(900, 0)
	pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: v1.ReasonRejected, Message: "no devices"}
	refuse := true
	c := newCluster(t, v1.Scheduling, interceptor.Funcs{
		Create: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if refuse {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, o.GetName(), errors.New("quota"))
			}
			return w.Create(ctx, o, opts...)
		},
	}, pod)
	for range 5 {
		if err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.status(); !strings.HasPrefix(got, "Scheduling") ||
		!strings.Contains(got, "Synchronized=False/FailedCreate") || c.pods() != 0 {
		t.Fatalf("while it is refused: status %s, %d pods", got, c.pods())
	}
	refuse = false
	if err := c.reconcile(); err != nil {
		t.Fatal(err)
	}
	if got := c.status(); !strings.HasPrefix(got, "Scheduling") || strings.Contains(got, "Synchronized") || c.pods() != 1 {
		t.Errorf("status %s, %d pods", got, c.pods())
	}
}

// TestReconcilePodRejectedAfterItRan: a pod that the kubelet turns away after its guest ran, as it does after a
// power cut, ends the VMI, whatever the kubelet has forgotten.
func TestReconcilePodRejectedAfterItRan(t *testing.T) {
	for _, phase := range []v1.VirtualMachineInstancePhase{v1.Scheduled, v1.Running} {
		pod := Pod(load(t, "testdata/minimal"), testConfig)
		pod.UID, pod.CreationTimestamp = "rejected", metav1.Unix(900, 0)
		pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: v1.ReasonRejected, Message: "no devices"}
		c := newCluster(t, phase, interceptor.Funcs{}, pod)
		for range 3 {
			if err := c.reconcile(); err != nil {
				t.Fatal(err)
			}
		}
		if got := c.status(); got != "Failed  UnexpectedAdmissionError; LiveMigratable=True/Migratable Ready=False/UnexpectedAdmissionError" || c.pods() != 1 {
			t.Errorf("%s: status %s, %d pods", phase, got, c.pods())
		}
	}
}

// TestReconcileOrphanedPod: the garbage collector took the owner of a deleted
// VMI's pod away. The guest is asked to go down all the same, the VMI is there
// until it has, and how it ended is not lost.
func TestReconcileOrphanedPod(t *testing.T) {
	ctx := context.Background()
	pod := strange(t)
	pod.Finalizers = []string{"test/keep"} // the kubelet's grace period
	pod.Status = podIn(corev1.PodRunning, running()).Status
	c := newCluster(t, v1.Running, interceptor.Funcs{}, pod)
	vmi := c.get()
	vmi.Status.ActivePods = map[types.UID]string{pod.UID: "node1"}
	if err := errors.Join(c.client.Status().Update(ctx, vmi), c.client.Delete(ctx, vmi)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
		if err := c.client.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil || pod.DeletionTimestamp == nil {
			t.Errorf("the pod is not being deleted (%v)", err)
		}
		if vmi := c.get(); len(vmi.Finalizers) != 1 || vmi.Status.Phase != v1.Running {
			t.Errorf("finalizers %v, status %s, while the guest runs", vmi.Finalizers, summary(vmi.Status))
		}
	}
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	ended := pod.DeepCopy()
	ended.Status = corev1.PodStatus{Phase: corev1.PodFailed,
		ContainerStatuses: []corev1.ContainerStatus{{Name: ContainerName,
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "OOMKilled"}}}}}
	c.podEvents().Delete(ctx, event.DeleteEvent{Object: ended}, queue)
	if queue.Len() != 1 {
		t.Error("that its pod is gone does not bring the VMI back")
	}
	if last, ok := c.ends.of(vmi); !ok || last.reason != "OOMKilled" {
		t.Errorf("it ended as %+v", last)
	}
	pod.Finalizers = nil
	if err := c.client.Update(ctx, pod); err != nil {
		t.Fatal(err)
	}
	if err := c.reconcile(); err != nil {
		t.Error(err)
	}
	if err := c.client.Get(ctx, client.ObjectKeyFromObject(vmi), vmi); !apierrors.IsNotFound(err) {
		t.Errorf("the VMI is there (%v)", err)
	}
}

// TestReconcileUnwatchedPod: a pod without the launchers' label is not in the cache,
// and one without owner whose annotation somebody changed names another VMI. That
// such a pod is gone is no event of the VMI's; so a deleted VMI asks again until
// then, and does not hang.
func TestReconcileUnwatchedPod(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"without label": func(p *corev1.Pod) { delete(p.Labels, v1.AppLabel) },
		"that names another VMI": func(p *corev1.Pod) {
			p.OwnerReferences, p.Annotations = nil, map[string]string{v1.DomainAnnotation: "other"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			pod := Pod(load(t, "testdata/minimal"), testConfig)
			pod.UID, pod.Spec.NodeName, pod.Finalizers = "launcher", "node1", []string{"test/keep"} // the kubelet's grace period
			pod.Status = podIn(corev1.PodRunning, running()).Status
			change(pod)
			c := newCluster(t, v1.Running, interceptor.Funcs{}, pod)
			c.Reconciler.Client = labelled{c.client}
			vmi := c.get()
			vmi.Status.ActivePods = map[types.UID]string{pod.UID: "node1"}
			if err := errors.Join(c.client.Status().Update(ctx, vmi), c.client.Delete(ctx, vmi)); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if after := c.later(); after != unwatchedDelay {
					t.Errorf("it asks again after %s", after)
				}
			}
			if err := c.client.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil || pod.DeletionTimestamp == nil {
				t.Fatalf("the pod is not being deleted (%v)", err)
			}
			pod.Finalizers = nil
			if err := c.client.Update(ctx, pod); err != nil {
				t.Fatal(err)
			}
			if after := c.later(); after != 0 {
				t.Errorf("it asks again after %s, and the pod is gone", after)
			}
			if err := c.client.Get(ctx, client.ObjectKeyFromObject(vmi), vmi); !apierrors.IsNotFound(err) {
				t.Errorf("the VMI is there (%v)", err)
			}
		})
	}
}

// labelled reads pods as virt-controller's cache has them.
type labelled struct{ client.Client }

func (c labelled) Get(ctx context.Context, key client.ObjectKey, object client.Object,
	options ...client.GetOption) error {
	if err := c.Client.Get(ctx, key, object, options...); err != nil {
		return err
	}
	if pod, ok := object.(*corev1.Pod); ok && pod.Labels[v1.AppLabel] != "virt-launcher" {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, key.Name)
	}
	return nil
}

// TestReconcileRefusedInTheSameWords: a refusal that the API server words in another order each time is written
// once.
func TestReconcileRefusedInTheSameWords(t *testing.T) {
	writes := 0
	var errs field.ErrorList
	for _, name := range strings.Split("abcdefgh", "") {
		errs = append(errs, field.Invalid(field.NewPath("spec", "nodeSelector"), name+"!", "is no name"))
	}
	c := newCluster(t, "", interceptor.Funcs{
		Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
			rand.Shuffle(len(errs), func(i, j int) { errs[i], errs[j] = errs[j], errs[i] })
			return apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, o.GetName(), errs)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch,
			opts ...client.SubResourcePatchOption) error {
			writes++
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		},
	})
	for range 20 {
		if c.later() <= 0 {
			t.Error("it is not tried again")
		}
	}
	if n := len(c.Events.(*events.FakeRecorder).Events); writes != 1 || n != 1 {
		t.Errorf("%d writes, %d events: %s", writes, n, c.get().Status.Condition(v1.ConditionSynchronized).Message)
	}
}

// TestReconcileRejectedPodWaits: the longer a node turns every pod away, the less often it is asked.
func TestReconcileRejectedPodWaits(t *testing.T) {
	for _, tt := range []struct{ age, podAge, want time.Duration }{
		{4 * time.Second, time.Second, 2 * time.Second},
		{4 * time.Second, 3 * time.Second, 0},
		{time.Minute, 4 * time.Second, 11 * time.Second},
		{time.Hour, 4 * time.Second, 5*time.Minute - 4*time.Second},
		{time.Hour, 5 * time.Minute, 0},
		{-24 * time.Hour, -24 * time.Hour, 0},                    // the clock was set back
		{-time.Minute, -time.Minute, replaceAfter + time.Minute}, // it is behind the API server's
		{time.Hour, -time.Minute, longestDelay},
	} {
		pod := Pod(load(t, "testdata/minimal"), testConfig)
		pod.UID, pod.CreationTimestamp = "rejected", metav1.NewTime(time.Unix(1000, 0).Add(-tt.podAge))
		pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: v1.ReasonRejected, Message: "no devices"}
		c := newCluster(t, v1.Scheduling, interceptor.Funcs{}, pod)
		vmi := c.get()
		vmi.CreationTimestamp = metav1.NewTime(time.Unix(1000, 0).Add(-tt.age))
		if err := c.client.Update(context.Background(), vmi); err != nil {
			t.Fatal(err)
		}
		c.later() // it is noted
		if after := c.later(); after != tt.want || (c.pods() == 0) != (tt.want == 0) {
			t.Errorf("VMI of %s, pod of %s: again after %s, %d pods; want %s", tt.age, tt.podAge, after, c.pods(), tt.want)
		}
	}
}

// TestReconcileStrangePodVanishes: the controller makes the pod a little later when a pod was in the way, and
// is gone as it is looked at.
func TestReconcileStrangePodVanishes(t *testing.T) {
	first := true
	c := newCluster(t, "", interceptor.Funcs{
		Create: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if first {
				first = false
				return apierrors.NewAlreadyExists(schema.GroupResource{Resource: "pods"}, o.GetName())
			}
			return w.Create(ctx, o, opts...)
		},
	})
	if after := c.later(); after != vanishedDelay {
		t.Errorf("tried again after %s", after)
	}
	if c.later(); c.pods() != 1 || c.status() != created {
		t.Errorf("%d pods, status %s", c.pods(), c.status())
	}
}
