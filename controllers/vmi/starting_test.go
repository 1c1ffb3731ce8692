package vmi

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

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
	if after := c.later(); after != soonDelay {
		t.Errorf("tried again after %s", after)
	}
	if c.later(); c.pods() != 1 || c.status() != created {
		t.Errorf("%d pods, status %s", c.pods(), c.status())
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

// TestNewPodIsEarlyForTwoSeconds: the API server's times have whole seconds, so a pod of this second may look a
// second old.
func TestNewPodIsEarlyForTwoSeconds(t *testing.T) {
	made := time.Unix(1000, 0)
	for _, tt := range []struct {
		age  time.Duration
		want bool
	}{{0, true}, {1999 * time.Millisecond, true}, {2 * time.Second, false}, {-1999 * time.Millisecond, true},
		{-2 * time.Second, false}} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(made)}}
		if got := early(&v1.VirtualMachineInstanceStatus{}, pod, made.Add(tt.age)); got != tt.want {
			t.Errorf("a pod of %s is early: %t, want %t", tt.age, got, tt.want)
		}
		pod.Spec.NodeName = "node1"
		if early(&v1.VirtualMachineInstanceStatus{}, pod, made.Add(tt.age)) {
			t.Errorf("a bound pod of %s is early", tt.age)
		}
	}
}
