package v1

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestComplaintIsItsOwners: a complaint is taken back by its owner, and by nobody else.
func TestComplaintIsItsOwners(t *testing.T) {
	for reason, owner := range map[string]ComplaintOwner{
		ReasonInvalidSpec: OwnerAdmission, ReasonPresetFailed: OwnerAdmission, ReasonFailedUpdate: OwnerAdmission,
		ReasonPvcNotFound: OwnerDisks, ReasonDataVolumeFailed: OwnerDisks, ReasonStateClaim: OwnerState,
		ReasonFailedCreate: OwnerPod, ReasonRejected: OwnerReplacement, ReasonNoImageVolumes: OwnerReplacement,
		ReasonMountFailed: OwnerSandbox, ReasonSandboxFailed: OwnerSandbox, ReasonSandboxSlow: OwnerSandbox,
		ReasonSandboxStays: OwnerRemoval,
		ReasonErrImagePull: OwnerContainers, ReasonImagePullBackOff: OwnerContainers,
		"CreateContainerConfigError": OwnerContainers,
		ReasonStartFailed:            OwnerStart,
	} {
		for _, other := range []ComplaintOwner{OwnerAdmission, OwnerDisks, OwnerState, OwnerPod, OwnerReplacement,
			OwnerSandbox, OwnerRemoval, OwnerContainers, OwnerStart} {
			s := &VirtualMachineInstanceStatus{}
			s.Complain(reason, "why", metav1.Unix(1, 0))
			if c := s.Condition(ConditionSynchronized); c.Status != metav1.ConditionFalse || c.Reason != reason ||
				c.Message != "why" {
				t.Errorf("%+v", c)
			}
			is := s.ComplaintOf(other)
			s.EndComplaint(other)
			if stays := s.Condition(ConditionSynchronized) != nil; is != (other == owner) || stays == is {
				t.Errorf("%s of %s: the complaint of %s is %v, and stays %v", reason, owner, other, is, stays)
			}
		}
	}
	if none := (&VirtualMachineInstanceStatus{}); none.ComplaintOf(OwnerContainers) {
		t.Error("a complaint without a condition")
	}
}
