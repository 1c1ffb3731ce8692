package vmi

import (
	"context"
	"errors"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/follow"
)

// withMetadata counts the merge patches of pods' status, and takes the metadata in them, as the API
// server does for pods. The fake client takes only the status.
func withMetadata(patches *int) interceptor.Funcs {
	return interceptor.Funcs{SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object,
		p client.Patch, opts ...client.SubResourcePatchOption) error {
		if _, isPod := o.(*corev1.Pod); isPod && p.Type() == types.MergePatchType {
			*patches++
			return c.Patch(ctx, o, p)
		}
		return c.SubResource(sub).Patch(ctx, o, p, opts...)
	}}
}

// TestPodFollowsLabelsAndAnnotations: a launcher pod follows its VMI's chosen labels and annotations, keeps all
// others, and is written only when something changes.
func TestPodFollowsLabelsAndAnnotations(t *testing.T) {
	patches := 0
	faults := withMetadata(&patches)
	const evict = "descheduler.alpha.kubernetes.io/evict"
	pod := gated(t, podCondition(unpausedGate, corev1.ConditionTrue))
	pod.Labels["example.com/cni"], pod.Annotations["example.com/cni"] = "eth0", "eth0"
	before := pod.DeepCopy()
	c := newCluster(t, v1.Running, faults, pod)
	var err error
	if c.Follow, err = follow.Parse("", "example.com/*,kubevirt.example.com/x"); err != nil {
		t.Fatal(err)
	}
	step := func(name string, edit func(*v1.VirtualMachineInstance), labels, annotations map[string]string,
		wantPatches int) {
		t.Helper()
		vmi := c.get()
		edit(vmi)
		if err := c.client.Update(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := c.reconcile(); err != nil {
				t.Fatal(err)
			}
		}
		now := &corev1.Pod{}
		if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(pod), now); err != nil {
			t.Fatal(err)
		}
		wantLabels, wantAnnotations := maps.Clone(before.Labels), maps.Clone(before.Annotations)
		maps.Copy(wantLabels, labels)
		maps.Copy(wantAnnotations, annotations)
		delete(now.Annotations, follow.Annotation)
		if !maps.Equal(now.Labels, wantLabels) || !maps.Equal(now.Annotations, wantAnnotations) || patches != wantPatches {
			t.Errorf("%s: labels %v, annotations %v (%d patches), want %v and %v (%d)", name, now.Labels, now.Annotations,
				patches, wantLabels, wantAnnotations, wantPatches)
		}
	}
	type m = map[string]string
	step("as it is made", func(*v1.VirtualMachineInstance) {}, nil, nil, 0)
	step("others' keys", func(vmi *v1.VirtualMachineInstance) {
		vmi.Labels = m{"app": "web", v1.AppLabel: "virt-api", v1.VirtualMachineInstanceIDLabel: "other",
			v1.CreatedByLabel: "other"}
		vmi.Annotations = m{"note": "x", v1.DomainAnnotation: "other",
			"kubeqemu.io/following": "label:kubevirt.io,annotation:kubevirt.io/domain,label:example.com/cni"}
	}, nil, nil, 0)
	step("new keys", func(vmi *v1.VirtualMachineInstance) {
		vmi.Labels, vmi.Annotations = m{"example.com/tier": "1"}, m{evict: "true"}
	},
		m{"example.com/tier": "1"}, m{evict: "true"}, 1)
	step("a new value", func(vmi *v1.VirtualMachineInstance) { vmi.Labels["example.com/tier"] = "2" },
		m{"example.com/tier": "2"}, m{evict: "true"}, 2)
	step("they go", func(vmi *v1.VirtualMachineInstance) { vmi.Labels, vmi.Annotations = nil, nil }, nil, nil, 3)
}

// TestPodWithoutGateIsNotWritten: the policy has virt-controller write no pod without the gate.
func TestPodWithoutGateIsNotWritten(t *testing.T) {
	patches := 0
	pod := gated(t, podCondition(unpausedGate, corev1.ConditionTrue))
	pod.Spec.ReadinessGates = nil
	c := newCluster(t, v1.Running, withMetadata(&patches), pod)
	var err error
	if c.Follow, err = follow.Parse("", "example.com/*"); err != nil {
		t.Fatal(err)
	}
	vmi := c.get()
	vmi.Labels = map[string]string{"example.com/tier": "1"}
	if err := errors.Join(c.client.Update(t.Context(), vmi), c.reconcile()); err != nil || patches != 0 {
		t.Errorf("the pod was written %d times: %v", patches, err)
	}
}

// TestNewPodHasItsNote: a new pod has its note from the start, and a user's own note is not its.
func TestNewPodHasItsNote(t *testing.T) {
	patches := 0
	c := newCluster(t, "", withMetadata(&patches))
	var err error
	if c.Follow, err = follow.Parse("", "example.com/*"); err != nil {
		t.Fatal(err)
	}
	vmi := c.get()
	vmi.Labels, vmi.Annotations = map[string]string{"example.com/tier": "1"},
		map[string]string{follow.Annotation: "annotation:example.com/x"}
	if err := c.client.Update(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
	}
	pods := &corev1.PodList{}
	if err := c.client.List(t.Context(), pods); err != nil || len(pods.Items) != 1 {
		t.Fatalf("%d pods: %v", len(pods.Items), err)
	}
	if a := pods.Items[0].Annotations[follow.Annotation]; a != "label:example.com/tier" || patches != 0 {
		t.Errorf("the pod follows %q, and was written %d times", a, patches)
	}
}
