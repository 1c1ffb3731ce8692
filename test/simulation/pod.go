package simulation

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/vmi"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Guest is a VMI that needs of a node what most do: an image and a network.
func Guest() v1.VirtualMachineInstanceSpec {
	return v1.VirtualMachineInstanceSpec{
		Domain: v1.DomainSpec{
			Memory: &v1.Memory{Guest: ptr.To(resource.MustParse("128Mi"))},
			Devices: v1.Devices{
				Disks:      []v1.Disk{{Name: "root", Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}},
				Interfaces: []v1.Interface{{Name: "default", Masquerade: &v1.InterfaceMasquerade{}}},
			},
		},
		Networks: []v1.Network{{Name: "default", Pod: &v1.PodNetwork{}}},
		Volumes:  []v1.Volume{{Name: "root", ContainerDisk: &v1.ContainerDiskSource{Image: "image"}}},
	}
}

// What follows is what the scheduler and a kubelet write for a pod.

// bind is the scheduler's word.
func bind(ctx context.Context, kube client.Client, pod *corev1.Pod, node string) error {
	return kube.SubResource("binding").Create(ctx, pod, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node}})
}

// accept is the kubelet's first word: it makes the containers.
func accept(ctx context.Context, kube client.Client, pod *corev1.Pod) error {
	before := pod.DeepCopy()
	now := metav1.Now()
	pod.Status.HostIP, pod.Status.StartTime = "192.0.2.1", &now
	pod.Status.HostIPs = []corev1.HostIP{{IP: pod.Status.HostIP}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: vmi.ContainerName, Started: ptr.To(false),
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}}
	conditions(pod, corev1.ConditionFalse, now)
	return kube.Status().Patch(ctx, pod, client.StrategicMergeFrom(before))
}

// kubeletTakes is how long a pod's containers take to start, from the kubelet's first word.
const kubeletTakes = 500 * time.Millisecond

// making knows which containers are being made. The zero value is ready for use.
type making struct {
	mu    sync.Mutex
	since map[types.UID]time.Time
}

// step says the kubelet's first word of a pod, and returns how long the containers still take.
func (m *making) step(ctx context.Context, kube client.Client, pod *corev1.Pod) (time.Duration, error) {
	m.mu.Lock()
	since, known := m.since[pod.UID]
	if !known {
		if m.since == nil {
			m.since = map[types.UID]time.Time{}
		}
		since = time.Now()
		m.since[pod.UID] = since
	}
	m.mu.Unlock()
	var err error
	if pod.Status.StartTime == nil {
		err = accept(ctx, kube, pod)
	}
	return max(kubeletTakes-time.Since(since), 0), err
}

// forget drops a pod that is gone.
func (m *making) forget(pod *corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.since, pod.UID)
}

// runs says that the containers run, and the pod's address.
func runs(ctx context.Context, kube client.Client, pod *corev1.Pod, address string) error {
	before := pod.DeepCopy()
	now := metav1.Now()
	pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, address
	pod.Status.PodIPs = []corev1.PodIP{{IP: address}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: vmi.ContainerName, Ready: true, Started: ptr.To(true),
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}}}
	conditions(pod, corev1.ConditionTrue, now)
	return kube.Status().Patch(ctx, pod, client.StrategicMergeFrom(before))
}

// conditions sets those that depend on the containers.
func conditions(pod *corev1.Pod, status corev1.ConditionStatus, now metav1.Time) {
	for _, kind := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady} {
		c := corev1.PodCondition{Type: kind, Status: status, LastTransitionTime: now}
		found := false
		for i := range pod.Status.Conditions {
			if pod.Status.Conditions[i].Type == kind {
				pod.Status.Conditions[i], found = c, true
			}
		}
		if !found {
			pod.Status.Conditions = append(pod.Status.Conditions, c)
		}
	}
}

// ends says how the launcher ended.
func ends(ctx context.Context, kube client.Client, pod *corev1.Pod) error {
	before := pod.DeepCopy()
	pod.Status.Phase = corev1.PodSucceeded
	said := control.Termination{Reason: control.ReasonShutdown, Message: "the guest powered off"}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: vmi.ContainerName, State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Message: string(said.Encode()), Reason: "Completed", FinishedAt: metav1.Now()}}}}
	return kube.Status().Patch(ctx, pod, client.StrategicMergeFrom(before))
}
