package v1

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSetPhaseNeverGoesBack(t *testing.T) {
	phases := []VirtualMachineInstancePhase{"", Pending, Scheduling, Scheduled, Running, Succeeded, Failed}
	now := metav1.Unix(1000, 0)
	for i, from := range phases {
		for j, to := range phases {
			s := VirtualMachineInstanceStatus{Phase: from}
			s.SetPhase(to, now)
			final := from == Succeeded || from == Failed
			if moves := j > i && !final; moves {
				if want := []PhaseTransitionTimestamp{{to, now}}; s.Phase != to ||
					!slices.Equal(s.PhaseTransitionTimestamps, want) {
					t.Errorf("%q to %q: %q, %v", from, to, s.Phase, s.PhaseTransitionTimestamps)
				}
			} else if s.Phase != from || s.PhaseTransitionTimestamps != nil {
				t.Errorf("%q to %q: went to %q, %v", from, to, s.Phase, s.PhaseTransitionTimestamps)
			}
		}
	}
	s := VirtualMachineInstanceStatus{Phase: Running}
	s.SetPhase("Unknown", now)
	if s.Phase != Running {
		t.Errorf("an unknown phase was taken: %q", s.Phase)
	}
}

func TestSetCondition(t *testing.T) {
	first, second, third := metav1.Unix(1, 0), metav1.Unix(2, 0), metav1.Unix(3, 0)
	condition := func(status metav1.ConditionStatus, reason string) VirtualMachineInstanceCondition {
		return VirtualMachineInstanceCondition{Type: ConditionReady, Status: status, Reason: reason}
	}
	var s VirtualMachineInstanceStatus
	check := func(step string, reason string, since metav1.Time) {
		t.Helper()
		got := s.Condition(ConditionReady)
		if len(s.Conditions) != 2 || got == nil || got.Reason != reason || got.LastTransitionTime != since {
			t.Errorf("%s: %+v, want reason %s since %v", step, s.Conditions, reason, since)
		}
	}
	s.SetCondition(VirtualMachineInstanceCondition{Type: ConditionPaused, Status: metav1.ConditionTrue}, first)
	s.SetCondition(condition(metav1.ConditionFalse, "A"), first)
	check("new", "A", first)
	s.SetCondition(condition(metav1.ConditionFalse, "B"), second)
	check("another reason", "B", first)
	s.SetCondition(condition(metav1.ConditionTrue, "C"), third)
	check("another status", "C", third)
	s.RemoveCondition(ConditionReady)
	if s.Condition(ConditionReady) != nil || s.Condition(ConditionPaused) == nil {
		t.Errorf("after removal: %+v", s.Conditions)
	}
}
