package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConditionType names a condition of a VMI.
type ConditionType string

// Conditions of a VMI, with KubeVirt's names.
const (
	// ConditionReady: the guest runs. While it does not, the reason says why.
	ConditionReady ConditionType = "Ready"
	// ConditionSynchronized is False while something stops the VMI from
	// being carried out: an invalid spec, a missing image, a failed start.
	ConditionSynchronized ConditionType = "Synchronized"
	// ConditionPodScheduled is False while no node takes the launcher pod.
	ConditionPodScheduled ConditionType = "PodScheduled"
	// ConditionSoftwareEmulation: the guest runs under TCG, which QEMU does
	// not call an isolation boundary.
	ConditionSoftwareEmulation ConditionType = "SoftwareEmulation"
	// ConditionLiveMigratable: whether the guest can be moved to another node.
	ConditionLiveMigratable ConditionType = "LiveMigratable"
	// ConditionPaused: the guest's CPUs are stopped.
	ConditionPaused ConditionType = "Paused"
	// ConditionAgentConnected: QEMU's guest agent runs in the guest and answers. Otherwise the
	// condition is missing.
	ConditionAgentConnected ConditionType = "AgentConnected"
	// ConditionAccessCredentialsSynchronized: the guest's users have the keys and passwords
	// that the guest agent brings. If it brings none, the condition is missing.
	ConditionAccessCredentialsSynchronized ConditionType = "AccessCredentialsSynchronized"
	// ConditionEvictionRequested: an eviction of the launcher pod was refused, and the guest is asked
	// to leave its node.
	ConditionEvictionRequested ConditionType = "EvictionRequested"
	// ConditionTPMFailed: the emulator of the guest's TPM has ended, and the TPM answers no command until
	// the VirtualMachineInstance starts anew.
	ConditionTPMFailed ConditionType = "TPMFailed"
	// ConditionFilesystemFailed: the program that serves one of the guest's file systems has ended, and the
	// file system does not answer until the VirtualMachineInstance starts anew.
	ConditionFilesystemFailed ConditionType = "FilesystemFailed"
	// ConditionNetworkFailed: the program that connects one of the guest's interfaces has ended, and the guest has no network there
	// any more. It is our own.
	ConditionNetworkFailed ConditionType = "NetworkFailed"
	// ConditionRealtime says whether the threads of the guest's CPUs have the real-time scheduler that the spec asks for. It is our own.
	ConditionRealtime ConditionType = "Realtime"
	// ConditionNUMAMemoryUnbound is True for a guest that sees NUMA nodes: its memory is near them, but not bound to them. It is our own.
	ConditionNUMAMemoryUnbound ConditionType = "NUMAMemoryUnbound"
	// ConditionUnusualMTU is True while the MTU of one of the guest's networks keeps IPv6, or large packets, from the guest. It is our own.
	ConditionUnusualMTU ConditionType = "UnusualMTU"
	// ConditionSharedMAC is True while another VMI of the namespace has the MAC of one of the guest's cards, on the same network of Multus.
	// It is our own.
	ConditionSharedMAC ConditionType = "SharedMAC"
	// ConditionProvisioning: a disk is being filled, and the VMI waits for it.
	ConditionProvisioning ConditionType = "Provisioning"
)

// Conditions that only a VirtualMachine has.
const (
	// ConditionFailure: what the run strategy asks for failed.
	ConditionFailure ConditionType = "Failure"
	// ConditionRestartRequired: the template's spec is not the running guest's.
	ConditionRestartRequired ConditionType = "RestartRequired"
	// ConditionVolumesChange: a migration is to copy disks to the claims that the template names now.
	ConditionVolumesChange ConditionType = "VolumesChange"
	// ConditionManualRecoveryRequired: the guest has ended before its disks were copied to the claims
	// that the template names, and somebody must say which claims to start with.
	ConditionManualRecoveryRequired ConditionType = "ManualRecoveryRequired"
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

// Terminating returns the condition Ready of a VMI whose launcher pod is being deleted. Its message says what ready
// says of the guest. ready may be nil.
func Terminating(ready *VirtualMachineInstanceCondition) VirtualMachineInstanceCondition {
	c := VirtualMachineInstanceCondition{Type: ConditionReady, Status: metav1.ConditionFalse, Reason: ReasonPodTerminating,
		Message: "the launcher pod is being deleted"}
	if ready != nil && ready.Message != "" {
		c.Message += "; " + ready.Message
	}
	return c
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
var order = map[VirtualMachineInstancePhase]int{"": 0, Pending: 1, Scheduling: 2, Scheduled: 3, Running: 4,
	Succeeded: 5, Failed: 5}

// SetPhase moves the phase on, and notes the time. It does nothing for a phase that has been
// passed.
func (s *VirtualMachineInstanceStatus) SetPhase(p VirtualMachineInstancePhase, now metav1.Time) {
	if order[p] <= order[s.Phase] {
		return
	}
	s.Phase = p
	s.PhaseTransitionTimestamps = append(s.PhaseTransitionTimestamps,
		PhaseTransitionTimestamp{Phase: p, PhaseTransitionTimestamp: now})
}
