package v1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A complaint is the condition Synchronized: it is False, and its reason and message say what stops the VMI. Several
// parts of Kubeqemu complain, and each takes back its own complaints alone. A new launcher pod ends them all.

// ComplaintOwner is who sets a reason of the condition Synchronized, and takes it back.
type ComplaintOwner string

// Owners of complaints. virt-controller has the parts that follow one another from a VMI to its running launcher.
const (
	OwnerAdmission   ComplaintOwner = "admission"   // virt-controller, which completes a new VMI, or refuses it
	OwnerDisks       ComplaintOwner = "disks"       // virt-controller, which waits for claims and DataVolumes
	OwnerState       ComplaintOwner = "state"       // virt-controller, which makes the claim for the guest's state
	OwnerPod         ComplaintOwner = "pod"         // virt-controller, which makes the launcher's pod, and the pod of a claim's first consumer
	OwnerReplacement ComplaintOwner = "replacement" // virt-controller, which replaces a pod that its node does not run
	OwnerSandbox     ComplaintOwner = "sandbox"     // virt-controller, by the kubelet's events before a pod's first container
	OwnerRemoval     ComplaintOwner = "removal"     // virt-controller, by the kubelet's events of a pod that stays
	OwnerContainers  ComplaintOwner = "containers"  // virt-controller, in the kubelet's words of a container that waits
	OwnerStart       ComplaintOwner = "start"       // virt-handler, which starts the guest
)

// OwnerOf returns the owner of a reason. Reasons that are not Kubeqemu's own are the kubelet's, of a container that
// waits.
func OwnerOf(reason string) ComplaintOwner {
	switch reason {
	case ReasonInvalidSpec, ReasonPresetFailed, ReasonFailedUpdate:
		return OwnerAdmission
	case ReasonPvcNotFound, ReasonDataVolumeFailed:
		return OwnerDisks
	case ReasonStateClaim:
		return OwnerState
	case ReasonFailedCreate:
		return OwnerPod
	case ReasonRejected, ReasonNoImageVolumes:
		return OwnerReplacement
	case ReasonMountFailed, ReasonSandboxFailed, ReasonSandboxSlow:
		return OwnerSandbox
	case ReasonSandboxStays:
		return OwnerRemoval
	case ReasonStartFailed:
		return OwnerStart
	}
	return OwnerContainers
}

// Complain sets the complaint.
func (s *VirtualMachineInstanceStatus) Complain(reason, message string, now metav1.Time) {
	s.SetCondition(VirtualMachineInstanceCondition{Type: ConditionSynchronized, Status: metav1.ConditionFalse,
		Reason: reason, Message: message}, now)
}

// ComplaintOf reports whether there is a complaint of one of the owners.
func (s *VirtualMachineInstanceStatus) ComplaintOf(owners ...ComplaintOwner) bool {
	c := s.Condition(ConditionSynchronized)
	return c != nil && slices.Contains(owners, OwnerOf(c.Reason))
}

// EndComplaint takes the complaint back if it is of one of the owners.
func (s *VirtualMachineInstanceStatus) EndComplaint(owners ...ComplaintOwner) {
	if s.ComplaintOf(owners...) {
		s.RemoveCondition(ConditionSynchronized)
	}
}
