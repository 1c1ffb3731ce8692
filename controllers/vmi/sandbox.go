package vmi

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// +kubebuilder:rbac:groups="",resources=events,verbs=list

const (
	// connectPatience is how long a node may take to connect a pod before its events are read.
	connectPatience = 5 * time.Second
	// maxSandboxEvents is more events than the kubelet makes of one pod and one reason: it counts
	// the same event in one object.
	maxSandboxEvents = 20
	maxComplaint     = 1024 // bytes
)

// observeSandbox says in the VMI's status why its node cannot connect the pod, such as a
// NetworkAttachmentDefinition that does not exist. Only the kubelet's events say so. They are read
// only of VMIs with a network of Multus: a cluster's own network connects all pods or none. It
// returns when to look again, or 0.
func (r *Reconciler) observeSandbox(ctx context.Context, vmi *v1.VirtualMachineInstance, pod *corev1.Pod) (time.Duration, error) {
	since, waits := unconnected(vmi, pod)
	if !waits {
		connected(&vmi.Status)
		return 0, nil
	}
	if wait := connectPatience - r.Clock.Since(since); wait > 0 {
		return wait, nil
	}
	events := &corev1.EventList{}
	err := r.Live.List(ctx, events, client.InNamespace(pod.Namespace), client.Limit(maxSandboxEvents),
		client.MatchingFields{"involvedObject.uid": string(pod.UID), "reason": v1.ReasonSandboxFailed})
	if err != nil {
		return 0, fmt.Errorf("list the pod's events: %w", err)
	}
	if len(events.Items) > 0 {
		last := slices.MaxFunc(events.Items, func(a, b corev1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) })
		r.unsynchronized(vmi, v1.ReasonSandboxFailed, "the node cannot connect the pod, and tries again: "+complaint(last.Message))
	}
	return r.retryAfter(vmi, connectPatience), nil
}

// unconnected says whether a pod waits for its node to connect it to a network of Multus, and since
// when.
func unconnected(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) (since time.Time, waits bool) {
	if pod.Status.Phase != corev1.PodPending || pod.DeletionTimestamp != nil || !slices.ContainsFunc(vmi.Spec.Networks, func(n v1.Network) bool { return n.Multus != nil }) {
		return time.Time{}, false
	}
	for _, c := range pod.Status.Conditions {
		switch {
		case c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue:
			return time.Time{}, false
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue:
			since, waits = c.LastTransitionTime.Time, true
		}
	}
	return since, waits
}

// complaint is the part of the kubelet's message that stays the same at each attempt: what the
// network plugin says. Before it, the kubelet names the sandbox, which is another each time.
func complaint(message string) string {
	if _, said, ok := strings.Cut(message, "failed (add): "); ok {
		message = said
	}
	return control.Printable(message, maxComplaint)
}

// connected takes a complaint of observeSandbox back, once the node has connected the pod.
func connected(status *v1.VirtualMachineInstanceStatus) {
	if s := status.Condition(v1.ConditionSynchronized); s != nil && s.Reason == v1.ReasonSandboxFailed {
		status.RemoveCondition(v1.ConditionSynchronized)
	}
}
