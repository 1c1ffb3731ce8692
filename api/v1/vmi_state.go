package v1

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// The guest's state is what the machine itself keeps for a guest, besides the disks: UEFI variables, for
// example. State that outlives the VirtualMachineInstance is on a claim that virt-controller makes, one for
// each VirtualMachine, or for each VirtualMachineInstance without one.

const (
	// StateClaimLabel is KubeVirt's label of the claim. Its value is the VirtualMachine's name.
	StateClaimLabel = "persistent-state-for"
	// StateClaimBytes is how much storage the claim asks for, KubeVirt's 10Mi.
	StateClaimBytes = 10 << 20
)

// StateClaimBytes returns how much storage the guest's claim asks for. For arm64 the chip with the variables has 64
// MiB, of which a move to another node writes all.
func (s *VirtualMachineInstanceSpec) StateClaimBytes() int64 {
	if s.Architecture == ARM64 && s.Domain.PersistentVariables() {
		return StateClaimBytes + 64<<20
	}
	return StateClaimBytes
}

// StateClaim reports whether the guest's state is on a claim.
func (s *VirtualMachineInstanceSpec) StateClaim() bool {
	return s.Domain.PersistentVariables() || s.Domain.PersistentTPM()
}

// PersistentVariables reports whether the UEFI variables outlive the VirtualMachineInstance.
func (d *DomainSpec) PersistentVariables() bool {
	efi := d.UEFI()
	return efi != nil && ptr.Deref(efi.Persistent, false)
}

// StateClaimName returns the name of the claim with a guest's state. It has KubeVirt's form, but not KubeVirt's random
// end: the end is of the owner's UID, so that nothing can make two claims for one owner.
func StateClaimName(guest string, owner types.UID) string {
	return derivedName(StateClaimLabel+"-", guest, owner, FirstPod, maxClaimName)
}

// StateCopyName returns the name of the claim that a migration makes for a guest's state. No claim for a disk gets this
// name.
func StateCopyName(guest string, owner, migration types.UID) string {
	return derivedName(StateClaimLabel+"-", guest, owner, migration, maxClaimName)
}

// StateClaimInfo returns what the status says of the claim with the guest's state, or nil. The entry has the claim's
// name, as in KubeVirt, where the other entries have the names of volumes.
func (vmi *VirtualMachineInstance) StateClaimInfo() *PersistentVolumeClaimInfo {
	if !vmi.Spec.StateClaim() {
		return nil
	}
	for i := range vmi.Status.VolumeStatus {
		s := &vmi.Status.VolumeStatus[i]
		if info := s.PersistentVolumeClaimInfo; info != nil && s.Name == info.ClaimName && vmi.Spec.Volume(s.Name) == nil {
			return info
		}
	}
	return nil
}

// stateStays returns why the guest's state keeps the guest on its node, or an empty text if the state can move. A
// migration makes a claim for the state at the target, unless both nodes can use the claim that is there.
func (vmi *VirtualMachineInstance) stateStays() string {
	if !vmi.Spec.StateClaim() {
		return ""
	}
	info := vmi.StateClaimInfo()
	if info == nil {
		return "the state that outlives the VMI is on a claim of which nothing is known yet"
	}
	return ""
}
