package vmi

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// observe brings a status up to date with the launcher pod. It is pure.
func observe(status *v1.VirtualMachineInstanceStatus, pod *corev1.Pod, now metav1.Time) {
	status.SetPhase(v1.Scheduling, now)
	status.RemoveCondition(v1.ConditionProvisioning) // the pod is made once the disks are filled
	if pod.Spec.NodeName != "" {
		status.NodeName = pod.Spec.NodeName
	}
	observePod(status, pod)
	if pod.Status.QOSClass != "" {
		status.QOSClass = ptr.To(string(pod.Status.QOSClass))
	}
	status.RuntimeUser, status.LauncherContainerImageVersion = RuntimeUser, launcherImage(pod)
	observeScheduling(status, pod, now)
	observeEviction(status, now)
	observeWaiting(status, pod, now)
	if c := computeStatus(pod); c != nil && c.State.Running != nil {
		status.SetPhase(v1.Scheduled, now)
	}
	if e, ok := podEnd(pod); ok {
		finish(status, e, now)
		return
	}
	observeTermination(status, pod, now)
}

// observeTermination writes into Ready whether the pod is being deleted, and before the guest runs also that it
// does not run yet. Groups of VMIs replace a guest whose pod goes, however long the guest takes to shut down.
func observeTermination(status *v1.VirtualMachineInstanceStatus, pod *corev1.Pod, now metav1.Time) {
	ready := status.Condition(v1.ConditionReady)
	terminating := ready != nil && ready.Reason == v1.ReasonPodTerminating
	switch {
	case pod.DeletionTimestamp != nil && !terminating:
		status.SetCondition(v1.Terminating(ready), now)
	case pod.DeletionTimestamp != nil: // virt-handler adds what the guest does
	case terminating && status.Phase == v1.Running: // the pod that goes was the source of a migration
		setReady(status, metav1.ConditionFalse, v1.ReasonGuestNotRunning,
			"the guest has moved to another launcher pod, and virt-handler has not reported it yet", now)
	case status.Phase != v1.Running && !toldByHandler(ready):
		setReady(status, metav1.ConditionFalse, v1.ReasonGuestNotRunning, "the guest has not been started yet", now)
	}
}

// toldByHandler reports whether virt-handler has written the condition Ready of a VMI that does not run.
// virt-handler knows more then: a guest may fail or shut down before it has run.
func toldByHandler(ready *v1.VirtualMachineInstanceCondition) bool {
	return ready != nil && (ready.Reason == v1.ReasonGuestFailed || ready.Reason == v1.ReasonGuestShuttingDown)
}

// observePod notes the pod in the status, in place of an entry of the same name. The VMI's
// other pod stays, such as the target of a migration.
func observePod(status *v1.VirtualMachineInstanceStatus, pod *corev1.Pod) {
	seen := v1.LauncherPod{Name: pod.Name, UID: pod.UID, IPs: podIPs(pod)}
	list, active := []v1.LauncherPod{seen}, map[types.UID]string{}
	if pod.Spec.NodeName != "" {
		active[pod.UID] = pod.Spec.NodeName
	}
	for _, other := range status.LauncherPods {
		if other.Name == pod.Name {
			continue
		}
		list = append(list, other)
		if node := status.ActivePods[other.UID]; node != "" {
			active[other.UID] = node
		}
	}
	status.LauncherPods = list
	if len(active) > 0 {
		status.ActivePods = active
	}
}

// launcherImage returns the image of virt-launcher that a pod asks for.
func launcherImage(pod *corev1.Pod) string {
	for _, c := range pod.Spec.Containers {
		if c.Name == ContainerName {
			return c.Image
		}
	}
	return ""
}

// podIPs returns a pod's addresses. Kubernetes permits one address of each family. More than two would make the
// VMI's status invalid.
func podIPs(pod *corev1.Pod) []string {
	const families = 2
	var ips []string
	for _, ip := range pod.Status.PodIPs[:min(len(pod.Status.PodIPs), families)] {
		ips = append(ips, ip.IP)
	}
	return ips
}

func setReady(status *v1.VirtualMachineInstanceStatus, ready metav1.ConditionStatus, reason, message string,
	now metav1.Time) {
	status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionReady, Status: ready, Reason: reason,
		Message: message}, now)
}

// end is how a VMI ended.
type end struct {
	phase           v1.VirtualMachineInstancePhase
	reason, message string
}

func finish(status *v1.VirtualMachineInstanceStatus, e end, now metav1.Time) {
	e = e.inPostCopy(status.MigrationState)
	status.SetPhase(e.phase, now)
	if e.phase == v1.Failed {
		status.Reason = e.reason
	}
	status.RemoveCondition(v1.ConditionPaused)
	endEviction(status)
	status.RemoveCondition(v1.ConditionSharedMAC)
	// The guest's operating system and its addresses stay in the status.
	status.RemoveCondition(v1.ConditionAgentConnected)
	status.FSFreezeStatus = ""
	setReady(status, metav1.ConditionFalse, e.reason, e.message, now)
}

// inPostCopy returns the end of a guest whose migration this is. Where a launcher ends with its pod before the
// guest's memory is there, nobody else says that this was the end of a guest in post-copy.
func (e end) inPostCopy(m *v1.VirtualMachineInstanceMigrationState) end {
	unsaid := e.phase == v1.Failed && (e.reason == v1.ReasonLauncherKilled || e.reason == v1.ReasonPodDeleted)
	if !unsaid || m == nil || m.Ended() || !m.PostCopy() || m.Decision != v1.DecisionTarget ||
		m.TargetState != nil && m.TargetState.DomainReadyTimestamp != nil {
		return e
	}
	return end{v1.Failed, string(control.ReasonPostCopyFailed),
		"not all of the guest's memory was on the node to which the guest had moved: " + e.message}
}

// observeEviction writes into a condition that the guest is asked to leave its node. A guest that is on another
// node has left it.
func observeEviction(status *v1.VirtualMachineInstanceStatus, now metav1.Time) {
	if status.EvacuationNodeName == "" || status.EvacuationNodeName != status.NodeName {
		endEviction(status)
		return
	}
	status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionEvictionRequested,
		Status: metav1.ConditionTrue, Reason: v1.ReasonEvictionRequested,
		Message: "an eviction asks the guest to leave node " + status.EvacuationNodeName +
			"; with the evictionStrategy External another program brings it elsewhere, otherwise a migration does"}, now)
}

// endEviction takes back that the guest is asked to leave a node.
func endEviction(status *v1.VirtualMachineInstanceStatus) {
	status.EvacuationNodeName = ""
	status.RemoveCondition(v1.ConditionEvictionRequested)
}

// observeScheduling copies the scheduler's complaint to the VMI.
func observeScheduling(status *v1.VirtualMachineInstanceStatus, pod *corev1.Pod, now metav1.Time) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && pod.Spec.NodeName == "" {
			status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionPodScheduled, Status: metav1.ConditionFalse,
				Reason: c.Reason, Message: c.Message + waitsForARM64(pod, c.Message)}, now)
			return
		}
	}
	status.RemoveCondition(v1.ConditionPodScheduled)
}

// onlyARM64 returns, of a pod's node selector, that the pod is for nodes of arm64, or nil for other pods.
func onlyARM64(selector map[string]string) map[string]string {
	if selector[corev1.LabelArchStable] != v1.ARM64 {
		return nil
	}
	return map[string]string{corev1.LabelArchStable: v1.ARM64}
}

// waitsForARM64 returns what can be done for a guest of arm64 that no node takes, or "" for others.
func waitsForARM64(pod *corev1.Pod, complaint string) string {
	if pod.Spec.NodeSelector[corev1.LabelArchStable] != v1.ARM64 || !strings.Contains(complaint, "selector") {
		return ""
	}
	return " The guest is of arm64, and waits for a node of arm64. " +
		"The KubeVirt's configuration.architectureConfiguration.arm64.useEmulation would have new guests of arm64 " +
		"emulated on nodes of amd64"
}

// observeWaiting copies the kubelet's complaint to the VMI, such as an image that cannot be
// pulled.
func observeWaiting(status *v1.VirtualMachineInstanceStatus, pod *corev1.Pod, now metav1.Time) {
	c := waitingStatus(pod)
	if c == nil {
		// There is a pod; see wasRejected.
		status.EndComplaint(v1.OwnerPod)
		if pod.Status.Phase != corev1.PodPending { // all that comes before a pod's containers is done
			status.EndComplaint(v1.OwnerAdmission, v1.OwnerDisks, v1.OwnerState, v1.OwnerReplacement, v1.OwnerSandbox,
				v1.OwnerContainers)
		}
		return
	}
	status.Complain(c.State.Waiting.Reason, kit.WhyItWaits(c), now)
}

// waitingStatus returns the container of which the kubelet says why it waits: the launcher's, or one that the
// launcher's waits for.
func waitingStatus(pod *corev1.Pod) *corev1.ContainerStatus {
	compute := computeStatus(pod)
	if waits(compute) {
		return compute
	}
	if compute != nil && compute.State.Waiting == nil {
		return nil // it runs, or has ended
	}
	for i := range pod.Status.InitContainerStatuses {
		if c := &pod.Status.InitContainerStatuses[i]; waits(c) {
			return c
		}
	}
	return nil
}

func waits(c *corev1.ContainerStatus) bool {
	return c != nil && c.State.Waiting != nil && c.State.Waiting.Message != ""
}

func computeStatus(pod *corev1.Pod) *corev1.ContainerStatus {
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].Name == ContainerName {
			return &pod.Status.ContainerStatuses[i]
		}
	}
	return nil
}
