package vmi

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

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
	if last := c.ends.of(vmi); last == nil || last.reason != "OOMKilled" {
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

// TestTroubleWithOnePodHoldsUpNoOther: a deleted VMI's other pod is deleted, and what its own pod says is in the
// status, though its own pod cannot be deleted, or the node's words about that pod's removal cannot be read.
func TestTroubleWithOnePodHoldsUpNoOther(t *testing.T) {
	down := errors.New("down")
	for name, deleted := range map[string]bool{"a pod that cannot be deleted": false, "a pod that stays": true} {
		m := newMove(t)
		vmi, source := m.get(), &corev1.Pod{}
		vmi.Spec.Networks = append(vmi.Spec.Networks,
			v1.Network{Name: "lan", Multus: &v1.MultusNetwork{NetworkName: "lan"}})
		err := errors.Join(m.client.Get(t.Context(), client.ObjectKeyFromObject(m.source), source),
			m.client.Update(t.Context(), vmi), m.client.Delete(t.Context(), vmi))
		source.Finalizers = []string{"test/keep"}
		err = errors.Join(err, m.client.Update(t.Context(), source))
		source.Status.QOSClass = corev1.PodQOSBurstable
		err = errors.Join(err, m.client.Status().Update(t.Context(), source))
		if deleted {
			err = errors.Join(err, m.client.Delete(t.Context(), source))
		}
		if err != nil {
			t.Fatal(err)
		}
		fails := interceptor.NewClient(m.client, interceptor.Funcs{
			Delete: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
				if o.GetName() == source.Name {
					return down
				}
				return w.Delete(ctx, o, opts...)
			},
			List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return down },
		})
		m.Client, m.Live, m.Clock = fails, fails, clocktesting.NewFakePassiveClock(time.Now().Add(time.Hour))
		if err := m.reconcile(); !errors.Is(err, down) {
			t.Errorf("%s: error %v", name, err)
		}
		if err := m.client.Get(t.Context(), client.ObjectKeyFromObject(m.target), m.target); !apierrors.IsNotFound(err) {
			t.Errorf("%s: the other pod is there (%v)", name, err)
		}
		if m.get().Status.QOSClass == nil {
			t.Errorf("%s: the status lacks what the pod says", name)
		}
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
