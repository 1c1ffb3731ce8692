package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"time"

	"github.com/prometheus/procfs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const (
	// burstSize is how many guests or pods are started at once.
	burstSize = 18
	// burstPatience is how long one burst may take.
	burstPatience = 4 * time.Minute
)

// measureBurst starts guests that burn CPU from their first instruction on, all at once, and measures until
// the last is Running; beside as many plain pods that burn CPU too and request as much of it.
// A plain pod has the token that every pod gets, as in the row of kubectl apply. Pods without
// a token are measured as well, because virt-launcher's pods have none. No container of
// Kubeqemu may be restarted meanwhile. The round that is not counted has the API server make
// its schemas of the kinds, too.
func measureBurst(r *run) {
	kube, last := r.kube(), burstSize-1
	before := r.restarts(kube)
	r.eachRound(func(r *run) {
		vmis := burst(r, kube, "vmi", func(name string) client.Object { return burningVMI(name) })
		var pods []float64
		for _, token := range []bool{true, false} {
			b := burst(r, kube, "pod", func(name string) client.Object { return burningPod(name, token) })
			pods = append(pods, b.ready[last])
		}
		r.add("burst", vmis.running[last], pods...)
		r.addParts("burst", vmis.pods[last], vmis.containersReady[0], vmis.containersReady[last],
			vmis.running[0], vmis.running[burstSize/2-1])
	})
	if after := r.restarts(kube); after != before {
		fail("%d containers of Kubeqemu were restarted", after-before)
	}
}

// burst starts objects at once.
func burst(r *run, kube client.WithWatch, kind string, object func(name string) client.Object) *milestones {
	list := metav1.List{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}}
	for i := range burstSize {
		raw := must(json.Marshal(object(fmt.Sprintf("burst-%d", i))))
		list.Items = append(list.Items, apiruntime.RawExtension{Raw: raw})
	}
	// The kubelet and containerd still clean up after the previous burst.
	settle(r)
	return follow(r, kube, kind, list, burstSize, burstPatience)
}

// burningVMI has a guest whose init loops without end.
func burningVMI(name string) *v1.VirtualMachineInstance {
	vmi := guestVMI(benchNamespace, name, tinyImage)
	vmi.Spec.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{
		KernelArgs: `quiet rdinit=/bin/sh -- -c "while :; do :; done"`,
		Container:  &v1.KernelBootContainer{Image: tinyImage, KernelPath: "/boot/vmlinuz", InitrdPath: "/boot/initrd"},
	}}
	return vmi
}

// burningPod requests as much CPU as a VMI with one vCPU. The image has no shell, so the pod
// runs a benchmark of a disk that is nowhere (null-co).
func burningPod(name string, token bool) *corev1.Pod {
	spec := plainPod()
	spec.Containers[0].Command = []string{"/usr/bin/qemu-img", "bench", "-c", "2000000000",
		"--image-opts", "driver=null-co,size=1G"}
	spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
	spec.AutomountServiceAccountToken = ptr.To(token)
	// With 0 the API server removes the pod at once, and its process would burn on into the
	// next measurement.
	spec.TerminationGracePeriodSeconds = ptr.To[int64](1)
	return podOf(name, spec)
}

// restarts is how often containers of Kubeqemu were started anew.
func (r *run) restarts(kube client.Client) (count int32) {
	for _, pod := range r.pods(kube, installNamespace) {
		for _, c := range pod.Status.ContainerStatuses {
			count += c.RestartCount
		}
	}
	return count
}

// settle waits until the machine's CPUs have been idle for most of a second.
func settle(r *run) {
	const idle, period = 0.8, time.Second
	before := idleSeconds()
	r.await("the machine is idle", period, burstPatience, func() bool {
		now := idleSeconds()
		idled := now - before
		before = now
		return idled > idle*period.Seconds()*float64(runtime.NumCPU())
	})
}

// idleSeconds returns the sum of the times that each CPU has been idle since the machine was started.
func idleSeconds() float64 {
	proc := must(procfs.NewDefaultFS())
	return must(proc.Stat()).CPUTotal.Idle
}
