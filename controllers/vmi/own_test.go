package vmi

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/follow"
)

// TestTrimmedPodIsReadLikeAWholeOne: the reconciler reads out of a trimmed pod what it reads out of a whole one.
func TestTrimmedPodIsReadLikeAWholeOne(t *testing.T) {
	instance := load(t, "testdata/minimal")
	instance.UID = "vmi-uid"
	instance.Status.Phase = v1.Running
	whole := Pod(instance, testConfig)
	whole.UID, whole.Spec.NodeName = "pod-uid", "node1"
	whole.Status = podIn(corev1.PodRunning, running()).Status
	whole.Status.PodIPs = []corev1.PodIP{{IP: "10.244.0.7"}}
	whole.Annotations["descheduler.alpha.kubernetes.io/evict"], whole.Annotations["note"] = "true", "this"
	keys, err := follow.Parse("", "")
	if err != nil {
		t.Fatal(err)
	}
	trim := TrimPod(keys)
	object, err := trim(whole.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	trimmed := object.(*corev1.Pod)
	if a := trimmed.Annotations; len(a) != 3 || a["descheduler.alpha.kubernetes.io/evict"] != "true" ||
		a[v1.MemoryOverheadAnnotation] == "" {
		t.Errorf("annotations trimmed to %v", a)
	}
	if len(trimmed.Spec.Containers) != 1 || len(trimmed.Spec.Containers[0].VolumeMounts)+len(trimmed.Spec.Volumes) > 0 ||
		!equality.Semantic.DeepEqual(trimmed.Labels, whole.Labels) {
		t.Errorf("trimmed to %+v", trimmed)
	}
	// A pod that the garbage collector took the owner from still names its VMI.
	for range 2 {
		type reading struct {
			Status v1.VirtualMachineInstanceStatus
			Gate   *corev1.PodCondition
			VMI    string
			Owned  bool
		}
		read := func(pod *corev1.Pod) reading {
			r := reading{Gate: unpaused(instance, pod, metav1.Unix(1000, 0)), VMI: nameOfVMI(pod), Owned: owns(instance, pod)}
			observe(&r.Status, pod, metav1.Unix(1000, 0))
			return r
		}
		got, want := read(trimmed), read(whole)
		if !equality.Semantic.DeepEqual(got, want) || want.Gate == nil || want.VMI != instance.Name {
			t.Errorf("from a trimmed pod: %+v, from a whole one: %+v", got, want)
		}
		whole.OwnerReferences, trimmed.OwnerReferences = nil, nil
	}
	if other, err := trim("another object"); other != "another object" || err != nil {
		t.Errorf("another object became %v, %v", other, err)
	}
}

// TestTrimmedPodKeepsThatItIsForARM64: waitsForARM64 reads the architecture, and nobody reads the rest of a selector.
func TestTrimmedPodKeepsThatItIsForARM64(t *testing.T) {
	trim := TrimPod(follow.Keys{})
	for _, architecture := range []string{v1.ARM64, v1.AMD64} {
		var want map[string]string
		if architecture == v1.ARM64 {
			want = map[string]string{corev1.LabelArchStable: v1.ARM64}
		}
		object, err := trim(&corev1.Pod{Spec: corev1.PodSpec{
			NodeSelector: map[string]string{corev1.LabelArchStable: architecture, "zone": "a"},
			Containers:   []corev1.Container{{Name: ContainerName}}}})
		if err != nil {
			t.Fatal(err)
		}
		if got := object.(*corev1.Pod).Spec.NodeSelector; !maps.Equal(got, want) {
			t.Errorf("%s: the selector is trimmed to %v, want %v", architecture, got, want)
		}
	}
}
