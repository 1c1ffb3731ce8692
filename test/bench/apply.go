package main

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// measureApply measures kubectl apply → Running, beside a plain pod of the same image → Ready, and beside
// a copy of the VMI's pod without the VM.
func measureApply(r *run) {
	kube, count := r.kube(), 0
	name := func() string {
		count++
		return fmt.Sprintf("bench-%d", count)
	}
	start := func(r *run, kind string, object client.Object) *milestones {
		return follow(r, kube, kind, object, 1, 2*patience)
	}
	r.eachRound(func(r *run) {
		vmi := start(r, "vmi", guestVMI(benchNamespace, name(), tinyImage))
		accepted, done := vmi.accepted[0], vmi.running[0]
		var whole, server []float64
		for _, spec := range besideVMI(vmi.pod.Spec) {
			pod := start(r, "pod", podOf(name(), spec))
			whole, server = append(whole, pod.ready[0]), append(server, pod.ready[0]-pod.pods[0])
		}
		r.add("apply", done, whole...)
		r.add("apply-server", done-accepted, server...)
		// Two watches are not in order with each other.
		pod, scheduled, ready := min(vmi.pods[0], done), min(vmi.scheduled[0], done), done
		if len(vmi.ready) > 0 {
			ready = min(vmi.ready[0], done)
		}
		r.addParts("apply-server", accepted, pod-accepted, scheduled-pod, ready-scheduled, done-ready)
	})
}

// besideVMI returns the pods that a VMI is compared with, in the row's order. twin is the VMI's pod.
func besideVMI(twin corev1.PodSpec) []*corev1.PodSpec {
	twin.NodeName = ""
	twin.ReadinessGates = nil // virt-controller sets them, on VMIs' pods only
	for i := range twin.Containers {
		resources := twin.Containers[i].Resources
		delete(resources.Requests, "devices.kubevirt.io/vm")
		delete(resources.Limits, "devices.kubevirt.io/vm")
	}
	bare, imageless := plainPod(), twin.DeepCopy()
	bare.AutomountServiceAccountToken = ptr.To(false)
	isImage := func(v corev1.Volume) bool { return v.Image != nil }
	mounts := &imageless.Containers[0].VolumeMounts
	*mounts = slices.DeleteFunc(*mounts, func(m corev1.VolumeMount) bool {
		i := slices.IndexFunc(imageless.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		return i >= 0 && isImage(imageless.Volumes[i])
	})
	imageless.Volumes = slices.DeleteFunc(imageless.Volumes, isImage)
	return []*corev1.PodSpec{plainPod(), bare, imageless, &twin}
}

// plainPod returns a pod that stays: its virt-launcher waits for a virt-handler that it cannot
// reach.
func plainPod() *corev1.PodSpec {
	return &corev1.PodSpec{
		TerminationGracePeriodSeconds: ptr.To[int64](0),
		Containers: []corev1.Container{{Name: "compute", Image: launcherImage, ImagePullPolicy: corev1.PullIfNotPresent,
			Command: []string{"/usr/bin/virt-launcher", "run"}}},
	}
}

func podOf(name string, spec *corev1.PodSpec) *corev1.Pod {
	return &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: benchNamespace}, Spec: *spec}
}
