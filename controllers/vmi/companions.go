package vmi

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// companions returns the VMI's launcher pods that are there and do not have its guest. They are the target of a
// migration, or the source of one that has just ended.
func (r *Reconciler) companions(ctx context.Context, vmi *v1.VirtualMachineInstance) (map[string]*corev1.Pod, error) {
	found := map[string]*corev1.Pod{}
	for _, p := range vmi.Status.LauncherPods {
		if p.Name == vmi.LauncherPod() {
			continue
		}
		pod, _, err := r.ownPod(ctx, vmi, p.Name, p.UID != "" || vmi.DeletionTimestamp != nil)
		if err != nil {
			return nil, err
		}
		if pod != nil {
			found[p.Name] = pod
		}
	}
	return found, nil
}

// unwatchedDelay is the time between two looks at a VMI of which a pod's end makes no event.
const unwatchedDelay = 2 * time.Second

// noteCompanions brings the status up to date with the VMI's other pods. It returns when to look again if a pod's end
// makes no event for the VMI.
func (r *Reconciler) noteCompanions(_ context.Context, t *turn) (time.Duration, error) {
	observeCompanions(t.vmi, t.companions)
	if t.pod != nil && !t.watched || t.vmi.DeletionTimestamp != nil && len(t.companions) > 0 {
		return unwatchedDelay, nil
	}
	return 0, nil
}

// observeCompanions brings the status up to date with the VMI's other pods. A pod that has ended is dropped from
// it. It is pure.
func observeCompanions(vmi *v1.VirtualMachineInstance, found map[string]*corev1.Pod) {
	status := &vmi.Status
	var list []v1.LauncherPod
	for _, p := range status.LauncherPods {
		pod := found[p.Name]
		switch {
		case p.Name == vmi.LauncherPod(), pod == nil && p.UID == "" && awaited(vmi, p.Name):
			list = append(list, p)
		case pod == nil || ended(pod):
			delete(status.ActivePods, p.UID)
		default:
			list = append(list, v1.LauncherPod{Name: pod.Name, UID: pod.UID, IPs: podIPs(pod)})
			if pod.Spec.NodeName == "" {
				continue
			}
			if status.ActivePods == nil {
				status.ActivePods = map[types.UID]string{}
			}
			status.ActivePods[pod.UID] = pod.Spec.NodeName
		}
	}
	status.LauncherPods = list
}

// awaited reports whether a pod is the target of a migration, and is still to be made.
func awaited(vmi *v1.VirtualMachineInstance, pod string) bool {
	m := vmi.Migration()
	return m != nil && m.Decision == "" && m.TargetPod == pod
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
