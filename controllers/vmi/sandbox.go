package vmi

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/handover"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// +kubebuilder:rbac:groups="",resources=events,verbs=list

const (
	// connectPatience is how long a node may take to connect a pod, or to disconnect it, before its events are
	// read. That of a pod for which the VMI's own fields ask nothing of the node is longer: such a pod waits as
	// its neighbours do, mostly on a busy node.
	connectPatience      = 5 * time.Second
	plainConnectPatience = 15 * time.Second
	// slowConnect is how long a node may take without a word.
	slowConnect = time.Minute
	// maxSandboxEvents is more events than the kubelet makes of one pod: it counts the same event in one object,
	// and from the tenth on those that are alike.
	maxSandboxEvents = 100
	maxComplaint     = 1024 // bytes
	maxNamed         = 8    // networks
)

// explainSandbox writes into the VMI's status why its node cannot connect the pod or mount its volumes, such as
// a NetworkAttachmentDefinition or a ConfigMap that does not exist. Only the kubelet's events say so. It
// returns when to look again, or 0.
func (r *Reconciler) explainSandbox(ctx context.Context, t *turn) (time.Duration, error) {
	vmi, pod := t.vmi, t.pod
	since, waits := unconnected(pod)
	if !waits {
		vmi.Status.EndComplaint(v1.OwnerSandbox)
		return 0, nil
	}
	patience := plainConnectPatience
	if onMultus(vmi) || mountsObjects(vmi) {
		patience = connectPatience
	}
	if wait := patience - r.Clock.Since(since); wait > 0 {
		return wait, nil
	}
	told, err := r.tell(ctx, vmi, pod, startTroubles)
	if err != nil {
		return 0, err
	}
	if !told && onMultus(vmi) && r.Clock.Since(since) >= slowConnect {
		vmi.Status.Complain(v1.ReasonSandboxSlow, fmt.Sprintf("the node has not connected the pod within %s, "+
			"and does not say why: a network plugin may hang, or a volume is not mounted yet. "+
			"After some minutes the node gives the plugin up, and tries again%s",
			slowConnect, networksOf(vmi)), r.now())
	}
	return r.retryAfter(vmi, patience), nil
}

// explainRemoval writes into the status of a VMI that is deleted why its node cannot remove the pod. Until
// then, the pod stays, and the VMI too. It returns when to look again, or 0.
func (r *Reconciler) explainRemoval(ctx context.Context, t *turn) (time.Duration, error) {
	vmi, pod := t.vmi, t.pod
	if pod == nil || pod.DeletionTimestamp == nil || !onMultus(vmi) {
		return 0, nil
	}
	over := r.Clock.Since(pod.DeletionTimestamp.Time) // the pod's grace ends with this time
	if wait := connectPatience - over; wait > 0 {
		return wait, nil
	}
	_, err := r.tell(ctx, vmi, pod, []trouble{{v1.ReasonSandboxStays, "remove the pod"}})
	return min(max(over/4, connectPatience), longestDelay), err
}

// tell writes into the VMI's status which of the troubles a pod has, and reports whether its node has told any.
func (r *Reconciler) tell(ctx context.Context, vmi *v1.VirtualMachineInstance, pod *corev1.Pod,
	troubles []trouble) (bool, error) {
	events := &corev1.EventList{}
	err := r.Live.List(ctx, events, client.InNamespace(pod.Namespace), client.Limit(maxSandboxEvents),
		client.MatchingFields{"involvedObject.uid": string(pod.UID)})
	if err != nil {
		return false, fmt.Errorf("list the pod's events: %w", err)
	}
	trouble, message := latest(troubles, events.Items)
	if trouble != nil {
		vmi.Status.Complain(trouble.reason,
			"the node cannot "+trouble.cannot+", and tries again: "+complaint(message)+trouble.about(vmi, message), r.now())
	}
	return trouble != nil, nil
}

// onMultus reports whether a VMI has a network of Multus.
func onMultus(vmi *v1.VirtualMachineInstance) bool {
	return slices.ContainsFunc(vmi.Spec.Networks, func(n v1.Network) bool { return n.Multus != nil })
}

// networksOf names a VMI's networks of Multus, after a complaint. A plugin's own words may name none of them.
// An event has place for the first 1024 bytes only.
func networksOf(vmi *v1.VirtualMachineInstance) string {
	if !onMultus(vmi) {
		return ""
	}
	var names []string
	for _, n := range vmi.Spec.Networks {
		if n.Multus != nil {
			namespace, name := n.Multus.Definition(vmi.Namespace)
			names = append(names, fmt.Sprintf("%q (%s/%s)", n.Name, namespace, name))
		}
	}
	if more := len(names) - maxNamed; more > 0 {
		names = append(names[:maxNamed], fmt.Sprintf("%d more", more))
	}
	return ". The VMI's networks of Multus are " + strings.Join(names, ", ")
}

// latest returns the trouble of which the latest event tells, and the best message about it, or nil without
// such an event. An event stays for an hour, also when its trouble has gone by: the node connects a pod only
// after it has mounted all volumes. Beside the messages that name an object, the kubelet has messages that only
// count volumes, and may be later.
func latest(troubles []trouble, events []corev1.Event) (of *trouble, message string) {
	var newest metav1.Time
	for i, t := range troubles {
		about := slices.DeleteFunc(slices.Clone(events), func(e corev1.Event) bool { return e.Reason != t.reason })
		slices.SortStableFunc(about, func(a, b corev1.Event) int { return b.LastTimestamp.Compare(a.LastTimestamp.Time) })
		if len(about) == 0 || of != nil && !about[0].LastTimestamp.After(newest.Time) {
			continue
		}
		of, newest, message = &troubles[i], about[0].LastTimestamp, about[0].Message
		if named := slices.IndexFunc(about, namesVolume); named >= 0 {
			message = about[named].Message
		}
	}
	return of, message
}

// namesVolume reports whether the kubelet's message names the volume that it cannot mount.
func namesVolume(e corev1.Event) bool { return strings.Contains(e.Message, "MountVolume.") }

// trouble is what a node may be unable to do for a pod, and the reason of the kubelet's events about it.
type trouble struct{ reason, cannot string }

// about names the VMI's networks, if the trouble may be one of a network. A pod also stays if a container of it
// does not end.
func (t trouble) about(vmi *v1.VirtualMachineInstance, message string) string {
	switch t.reason {
	case v1.ReasonSandboxFailed:
		return networksOf(vmi)
	case v1.ReasonSandboxStays:
		if strings.Contains(message, "KillPodSandbox") {
			return networksOf(vmi)
		}
	}
	return ""
}

// startTroubles are those before a pod's first container, in the order in which the kubelet does what fails.
var startTroubles = []trouble{{v1.ReasonMountFailed, "mount a volume of the pod"},
	{v1.ReasonSandboxFailed, "set up the pod"}}

// mountsObjects reports whether the pod of a VMI has ConfigMaps or Secrets, which may be missing.
func mountsObjects(vmi *v1.VirtualMachineInstance) bool {
	return len(handover.Secrets(vmi)) > 0 ||
		slices.ContainsFunc(vmi.Spec.Volumes, func(v v1.Volume) bool { return v.IsConfig() })
}

// unconnected reports whether a pod waits for its node to mount its volumes and to set it up, and since when.
func unconnected(pod *corev1.Pod) (since time.Time, waits bool) {
	if pod.Status.Phase != corev1.PodPending || pod.DeletionTimestamp != nil {
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

// complaint returns the part of the kubelet's message that stays the same at each attempt. Before what a
// network plugin says, the kubelet names the sandbox, which is another each time.
func complaint(message string) string {
	for _, verb := range []string{"failed (add): ", "failed (delete): "} {
		if _, said, ok := strings.Cut(message, verb); ok {
			message = said
		}
	}
	return control.Printable(message, maxComplaint)
}
