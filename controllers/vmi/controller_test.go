package vmi

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

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
