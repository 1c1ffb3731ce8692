package vmi

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// asked has the requests that a Reconciler makes of the API server. What it reads from the cache is none.
type asked []string

// kind returns the name of an object's type.
func kind(object any) string {
	name := fmt.Sprintf("%T", object)
	return name[strings.LastIndex(name, ".")+1:]
}

// listen notes the cluster's requests.
func (a *asked) listen(c *cluster) {
	note := func(verb string, object any) { *a = append(*a, verb+" "+kind(object)) }
	c.Client = interceptor.NewClient(c.client, interceptor.Funcs{
		Create: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			note("create", o)
			o.SetCreationTimestamp(metav1.NewTime(c.Clock.Now()))
			return w.Create(ctx, o, opts...)
		},
		Delete: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			note("delete", o)
			return w.Delete(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, w client.WithWatch, o client.Object, p client.Patch,
			opts ...client.PatchOption) error {
			note("patch", o)
			return w.Patch(ctx, o, p, opts...)
		},
		SubResourcePatch: func(ctx context.Context, w client.Client, sub string, o client.Object, p client.Patch,
			opts ...client.SubResourcePatchOption) error {
			note("patch "+sub+" of", o)
			return w.SubResource(sub).Patch(ctx, o, p, opts...)
		},
	})
	c.Live = interceptor.NewClient(c.client, interceptor.Funcs{
		Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			note("get", o)
			return w.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, w client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			note("list", l)
			return w.List(ctx, l, opts...)
		},
	})
}

// TestRequestsOfAVMIsLife: from its start to its removal, a VMI costs the API server no more than these requests.
func TestRequestsOfAVMIsLife(t *testing.T) {
	var got asked
	c := newCluster(t, "", interceptor.Funcs{})
	clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	c.Clock = clock
	got.listen(c)
	step := func(name string, happens func(*corev1.Pod, *v1.VirtualMachineInstance), want ...string) {
		t.Helper()
		pods := &corev1.PodList{}
		if err := c.client.List(t.Context(), pods); err != nil {
			t.Fatal(err)
		}
		pod, vmi := &corev1.Pod{}, c.get()
		for i := range pods.Items {
			pod = &pods.Items[i]
		}
		happens(pod, vmi)
		got = nil
		for range 4 {
			if err := c.reconcile(); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	update := func(pod *corev1.Pod) {
		t.Helper()
		if err := c.client.Update(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	step("a new VMI", func(_ *corev1.Pod, vmi *v1.VirtualMachineInstance) {
		vmi.Finalizers = nil
		if err := c.client.Update(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
	}, "get Unstructured", "patch VirtualMachineInstance", "create Pod")
	step("its pod is bound", func(pod *corev1.Pod, _ *v1.VirtualMachineInstance) {
		pod.Spec.NodeName = "node1"
		update(pod)
	}, "patch status of VirtualMachineInstance")
	step("its pod runs", func(pod *corev1.Pod, _ *v1.VirtualMachineInstance) {
		pod.Status = podIn(corev1.PodRunning, running()).Status
		if err := c.client.Status().Update(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}, "patch status of VirtualMachineInstance")
	step("its guest runs", func(_ *corev1.Pod, vmi *v1.VirtualMachineInstance) {
		vmi.Status.SetPhase(v1.Running, metav1.NewTime(clock.Now()))
		setReady(&vmi.Status, metav1.ConditionTrue, v1.ReasonGuestRunning, "", metav1.NewTime(clock.Now()))
		if err := c.client.Status().Update(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
	})
	step("it has settled", func(*corev1.Pod, *v1.VirtualMachineInstance) {
		clock.SetTime(clock.Now().Add(time.Minute))
	}, "patch status of Pod", "patch VirtualMachineInstance")
	step("it runs on", func(*corev1.Pod, *v1.VirtualMachineInstance) {
		clock.SetTime(clock.Now().Add(time.Hour))
	})
	step("it is deleted", func(pod *corev1.Pod, vmi *v1.VirtualMachineInstance) {
		pod.Finalizers = []string{"test/keep"} // the kubelet's grace period
		update(pod)
		if err := c.client.Delete(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
	}, "delete Pod", "patch status of VirtualMachineInstance")
	step("its pod is gone", func(pod *corev1.Pod, _ *v1.VirtualMachineInstance) {
		pod.Finalizers = nil
		update(pod)
	}, "get Pod", "patch status of VirtualMachineInstance", "patch VirtualMachineInstance")
}
