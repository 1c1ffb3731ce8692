package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Of a guest that runs, Ready has one of these reasons: GuestRunning where no
// readiness probe asks it, and one of the others, which virt-controller chooses,
// where one does. A virt-handler of before probes says GuestRunning of each, and
// virt-controller does not contradict: two writers would have no end.
const (
	ReasonGuestRunning = "GuestRunning"
	ReasonGuestReady   = "GuestReady"
	// ReasonContainersNotReady is the kubelet's: the readiness probe has failed,
	// or not succeeded yet.
	ReasonContainersNotReady = "ContainersNotReady"

	MessageGuestRunning       = "the guest's CPUs run"
	MessageGuestReady         = "the guest runs, and answers its readiness probe"
	MessageContainersNotReady = "the guest runs, and does not answer its readiness probe"
)

// SetCondition sets a condition; its transition time changes only with its status.
func (s *VirtualMachineInstanceStatus) SetCondition(c VirtualMachineInstanceCondition, now metav1.Time) {
	for i := range s.Conditions {
		old := &s.Conditions[i]
		if old.Type != c.Type {
			continue
		}
		c.LastTransitionTime = old.LastTransitionTime
		if old.Status != c.Status {
			c.LastTransitionTime = now
		}
		*old = c
		return
	}
	c.LastTransitionTime = now
	s.Conditions = append(s.Conditions, c)
}

// RemoveCondition removes a condition.
func (s *VirtualMachineInstanceStatus) RemoveCondition(t ConditionType) {
	var kept []VirtualMachineInstanceCondition
	for _, c := range s.Conditions {
		if c.Type != t {
			kept = append(kept, c)
		}
	}
	s.Conditions = kept
}

// Condition returns a condition, or nil.
func (s *VirtualMachineInstanceStatus) Condition(t ConditionType) *VirtualMachineInstanceCondition {
	return condition(s.Conditions, t)
}

// Condition returns a condition, or nil.
func (s *VirtualMachineStatus) Condition(t ConditionType) *VirtualMachineInstanceCondition {
	return condition(s.Conditions, t)
}

func condition(list []VirtualMachineInstanceCondition, t ConditionType) *VirtualMachineInstanceCondition {
	for i := range list {
		if list[i].Type == t {
			return &list[i]
		}
	}
	return nil
}

// order of the phases; a phase never goes back.
var order = map[VirtualMachineInstancePhase]int{"": 0, Pending: 1, Scheduling: 2, Scheduled: 3, Running: 4, Succeeded: 5, Failed: 5}

// SetPhase moves the phase on and notes when; it does nothing for a phase that
// has been passed.
func (s *VirtualMachineInstanceStatus) SetPhase(p VirtualMachineInstancePhase, now metav1.Time) {
	if order[p] <= order[s.Phase] {
		return
	}
	s.Phase = p
	s.PhaseTransitionTimestamps = append(s.PhaseTransitionTimestamps, PhaseTransitionTimestamp{Phase: p, PhaseTransitionTimestamp: now})
}
