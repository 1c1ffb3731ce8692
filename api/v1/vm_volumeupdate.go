package v1

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"k8s.io/utils/ptr"
)

// A user can put a volume of a VirtualMachine on another claim while the guest runs. With
// updateVolumesStrategy Migration, a migration copies the disk to that claim. These facts say how far
// it is:
//
//   - the template of the VirtualMachine names the new claim;
//   - status.volumeUpdateState of the VirtualMachine says which disks are still to be copied, between
//     which claims;
//   - movesTo in status.volumeStatus of the VirtualMachineInstance tells the next migration;
//   - spec.volumes of the VirtualMachineInstance names the new claim once the guest has it there.

// VolumeUpdateState is about volumes that the template puts on other claims than the guest has.
type VolumeUpdateState struct {
	// VolumeMigrationState is about disks that a migration copies.
	// +optional
	VolumeMigrationState *VolumeMigrationState `json:"volumeMigrationState,omitempty"`
}

// VolumeMigrationState is about disks that a migration copies.
type VolumeMigrationState struct {
	// MigratedVolumes are the volumes whose disks are still to be copied. Of a claim that is not ready
	// to take its disk, only the name is told.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	MigratedVolumes []StorageMigratedVolumeInfo `json:"migratedVolumes,omitempty"`
}

// MovesVolumes reports whether a migration copies the disks of volumes that the template puts on other
// claims.
func (vm *VirtualMachine) MovesVolumes(rollout RolloutStrategy) bool {
	return ptr.Deref(vm.Spec.UpdateVolumesStrategy, UpdateVolumesStrategyReplacement) == UpdateVolumesStrategyMigration &&
		rollout == RolloutLiveUpdate
}

// updatable reports whether the template may put a volume on another claim while the guest runs: a claim
// that the guest writes to.
func (v *Volume) updatable() bool {
	claim := v.Claim()
	return claim != nil && !claim.Overlay && !claim.ReadOnly
}

// withoutClaim returns a volume that names no claim, so that two volumes are the same if only their claims
// differ.
func (v *Volume) withoutClaim() Volume {
	without := *v
	without.DataVolume, without.PersistentVolumeClaim = nil, &PersistentVolumeClaimVolumeSource{}
	return without
}

// VolumeUpdates returns the volumes that the template puts on other claims than the VirtualMachineInstance
// has, in the template's order, by the names of the claims. copied are those whose disks a migration is
// to copy. The others hold from the next start on.
func (vm *VirtualMachine) VolumeUpdates(vmi *VirtualMachineInstance, rollout RolloutStrategy) (
	copied, staged []StorageMigratedVolumeInfo) {
	for i := range vm.Spec.Template.Spec.Volumes {
		wanted := &vm.Spec.Template.Spec.Volumes[i]
		now := vmi.Spec.Volume(wanted.Name)
		if now == nil || !wanted.updatable() || !now.updatable() {
			continue
		}
		has, to := vmi.Claim(now).Name, vm.Status.HeldBy(wanted.Claim().Name)
		if has == to {
			continue
		}
		update := StorageMigratedVolumeInfo{VolumeName: wanted.Name,
			SourcePVCInfo:      &PersistentVolumeClaimInfo{ClaimName: has},
			DestinationPVCInfo: &PersistentVolumeClaimInfo{ClaimName: to}}
		if vm.MovesVolumes(rollout) && vmi.hasRun() && vmi.CanCopy(now) {
			copied = append(copied, update)
		} else {
			staged = append(staged, update)
		}
	}
	return copied, staged
}

// hasRun reports whether the guest has run. Of a guest that never ran there is nothing to copy.
func (vmi *VirtualMachineInstance) hasRun() bool {
	return slices.ContainsFunc(vmi.Status.PhaseTransitionTimestamps,
		func(t PhaseTransitionTimestamp) bool { return t.Phase == Running })
}

// PendingVolumes returns the volumes whose disks are still to be copied.
func (s *VirtualMachineStatus) PendingVolumes() []StorageMigratedVolumeInfo {
	if s.VolumeUpdateState == nil || s.VolumeUpdateState.VolumeMigrationState == nil {
		return nil
	}
	return s.VolumeUpdateState.VolumeMigrationState.MigratedVolumes
}

// NotCopied returns the volumes that the template puts on claims to which no migration has copied their
// disks, though one was to. A start would find other disks there, or none.
func (vm *VirtualMachine) NotCopied() []StorageMigratedVolumeInfo {
	if ptr.Deref(vm.Spec.UpdateVolumesStrategy, UpdateVolumesStrategyReplacement) != UpdateVolumesStrategyMigration {
		return nil // the user wants what is there
	}
	var out []StorageMigratedVolumeInfo
	for _, m := range vm.Status.PendingVolumes() {
		v := vm.Spec.Template.Spec.Volume(m.VolumeName)
		if v != nil && v.updatable() && vm.Status.HeldBy(v.Claim().Name) == m.To() {
			out = append(out, m)
		}
	}
	return out
}

// IsReady reports whether a claim is ready to take a disk: more is known than its name.
func (i *PersistentVolumeClaimInfo) IsReady() bool { return i != nil && i.VolumeMode != nil }

// MovesTo returns the claim that a user named for a volume, and to which the next migration copies its disk. It
// returns nil if there is none, or the guest has that claim already.
func (vmi *VirtualMachineInstance) MovesTo(volume string) *PersistentVolumeClaimInfo {
	s := vmi.Status.Volume(volume)
	if s == nil || s.PersistentVolumeClaimInfo == nil || s.MovesTo.name() == s.PersistentVolumeClaimInfo.ClaimName {
		return nil
	}
	return s.MovesTo
}

// VolumeUpdate returns a hash of which volumes the next migration copies to which claims, as users named them, or ""
// if there are none.
func (vmi *VirtualMachineInstance) VolumeUpdate() string {
	var list []string
	for i := range vmi.Spec.Volumes {
		if to := vmi.MovesTo(vmi.Spec.Volumes[i].Name); to != nil {
			list = append(list, fmt.Sprintf("%s=%s", vmi.Spec.Volumes[i].Name, to.ClaimName))
		}
	}
	if len(list) == 0 {
		return ""
	}
	sum := sha256.Sum256([]byte(strings.Join(list, ",")))
	return hex.EncodeToString(sum[:8])
}

// Knows reports whether the VM's status has what the next start needs to know of a VirtualMachineInstance that
// goes: which claim has which disk, and which disks are still to be copied.
func (vm *VirtualMachine) Knows(vmi *VirtualMachineInstance, rollout RolloutStrategy) bool {
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		named, info := v.Claim(), vmi.Status.ClaimInfo(v.Name)
		if named != nil && !named.Overlay && info != nil && vm.Status.HeldBy(named.Name) != info.ClaimName &&
			!vm.wants(v, info.ClaimName) {
			return false
		}
	}
	copied, _ := vm.VolumeUpdates(vmi, rollout)
	return slices.EqualFunc(vm.Status.PendingVolumes(), copied, StorageMigratedVolumeInfo.IsSame)
}

// wants reports whether the template puts a volume of the VirtualMachineInstance on another claim than its spec
// names, and the disk is there.
func (vm *VirtualMachine) wants(v *Volume, has string) bool {
	now := vm.Spec.Template.Spec.Volume(v.Name)
	return now != nil && now.Claim() != nil && now.Claim().Name != v.Claim().Name &&
		vm.Status.HeldBy(now.Claim().Name) == has
}

// KeepsHeld reports whether a VM notes for the next start which claim has the disk of a claim that the
// VirtualMachineInstance's spec names. It does not if the template names the claim that has the disk, or if a
// user named the claim to which a migration has just copied: the spec names that claim soon.
func (vm *VirtualMachine) KeepsHeld(vmi *VirtualMachineInstance, v *Volume, has string) bool {
	namedByUser := slices.ContainsFunc(vmi.UserClaims(),
		func(m StorageMigratedVolumeInfo) bool { return m.VolumeName == v.Name && m.To() == has })
	return !vm.wants(v, has) && (vmi.DeletionTimestamp != nil || !namedByUser)
}
