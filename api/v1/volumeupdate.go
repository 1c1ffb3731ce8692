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

// MovesVolumes says whether a migration copies the disks of volumes that the template puts on other
// claims.
func (vm *VirtualMachine) MovesVolumes(rollout RolloutStrategy) bool {
	return ptr.Deref(vm.Spec.UpdateVolumesStrategy, UpdateVolumesStrategyReplacement) == UpdateVolumesStrategyMigration && rollout == RolloutLiveUpdate
}

// updatable says whether the template may put a volume on another claim while the guest runs: a claim
// that the guest writes to.
func (v *Volume) updatable() bool {
	claim := v.Claim()
	return claim != nil && !claim.Overlay && !claim.ReadOnly
}

// withoutClaim is a volume that names no claim, so that two volumes are the same if only their claims
// differ.
func (v *Volume) withoutClaim() Volume {
	without := *v
	without.DataVolume, without.PersistentVolumeClaim = nil, &PersistentVolumeClaimVolumeSource{}
	return without
}

// VolumeUpdates are the volumes that the template puts on other claims than the VirtualMachineInstance
// has, in the template's order, by the names of the claims. copied are those whose disks a migration is
// to copy. The others hold from the next start on.
func (vm *VirtualMachine) VolumeUpdates(vmi *VirtualMachineInstance, rollout RolloutStrategy) (copied, staged []StorageMigratedVolumeInfo) {
	for i := range vm.Spec.Template.Spec.Volumes {
		wanted := &vm.Spec.Template.Spec.Volumes[i]
		j := slices.IndexFunc(vmi.Spec.Volumes, func(v Volume) bool { return v.Name == wanted.Name })
		if j < 0 || !wanted.updatable() || !vmi.Spec.Volumes[j].updatable() {
			continue
		}
		has, to := vmi.Claim(&vmi.Spec.Volumes[j]).Name, vm.Status.HeldBy(wanted.Claim().Name)
		if has == to {
			continue
		}
		update := StorageMigratedVolumeInfo{VolumeName: wanted.Name,
			SourcePVCInfo: &PersistentVolumeClaimInfo{ClaimName: has}, DestinationPVCInfo: &PersistentVolumeClaimInfo{ClaimName: to}}
		if vm.MovesVolumes(rollout) && vmi.canCopy(wanted.Name) {
			copied = append(copied, update)
		} else {
			staged = append(staged, update)
		}
	}
	return copied, staged
}

// canCopy says whether a migration could copy the disk of a volume to another claim: the guest has run,
// and writes to the disk, which lies on a file system. Of a guest that never ran there is nothing to copy.
func (vmi *VirtualMachineInstance) canCopy(volume string) bool {
	info := vmi.Status.ClaimInfo(volume)
	return vmi.hasRun() && info != nil && !info.IsBlock() && vmi.WritesTo(volume)
}

func (vmi *VirtualMachineInstance) hasRun() bool {
	return slices.ContainsFunc(vmi.Status.PhaseTransitionTimestamps, func(t PhaseTransitionTimestamp) bool { return t.Phase == Running })
}

// PendingVolumes are the volumes whose disks are still to be copied.
func (s *VirtualMachineStatus) PendingVolumes() []StorageMigratedVolumeInfo {
	if s.VolumeUpdateState == nil || s.VolumeUpdateState.VolumeMigrationState == nil {
		return nil
	}
	return s.VolumeUpdateState.VolumeMigrationState.MigratedVolumes
}

// NotCopied are the volumes that the template puts on claims to which no migration has copied their
// disks, though one was to. A start would find other disks there, or none.
func (vm *VirtualMachine) NotCopied() []StorageMigratedVolumeInfo {
	if ptr.Deref(vm.Spec.UpdateVolumesStrategy, UpdateVolumesStrategyReplacement) != UpdateVolumesStrategyMigration {
		return nil // the user wants what is there
	}
	var out []StorageMigratedVolumeInfo
	for _, m := range vm.Status.PendingVolumes() {
		i := slices.IndexFunc(vm.Spec.Template.Spec.Volumes, func(v Volume) bool { return v.Name == m.VolumeName && v.updatable() })
		if i >= 0 && m.DestinationPVCInfo != nil && vm.Status.HeldBy(vm.Spec.Template.Spec.Volumes[i].Claim().Name) == m.DestinationPVCInfo.ClaimName {
			out = append(out, m)
		}
	}
	return out
}

// IsReady says whether a claim is ready to take a disk: more is known than its name.
func (i *PersistentVolumeClaimInfo) IsReady() bool { return i != nil && i.VolumeMode != nil }

// MovesTo is the claim that a user named for a volume, and to which the next migration copies its disk;
// nil if there is none, or the guest has that claim already.
func (vmi *VirtualMachineInstance) MovesTo(volume string) *PersistentVolumeClaimInfo {
	for i := range vmi.Status.VolumeStatus {
		s := &vmi.Status.VolumeStatus[i]
		if s.Name == volume && s.MovesTo != nil && s.PersistentVolumeClaimInfo != nil && s.PersistentVolumeClaimInfo.ClaimName != s.MovesTo.ClaimName {
			return s.MovesTo
		}
	}
	return nil
}

// VolumeUpdate is a hash of which volumes the next migration copies to which claims, as users named
// them; empty if there are none.
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

// WritesTo says whether the guest writes to a volume, which is one of its disks.
func (vmi *VirtualMachineInstance) WritesTo(volume string) bool {
	return slices.ContainsFunc(vmi.Spec.Domain.Devices.Disks, func(d Disk) bool {
		_, readOnly := d.Target()
		return d.Name == volume && !readOnly
	})
}

// Knows says whether the VM's status has what the next start needs to know of a VirtualMachineInstance that
// goes: which claim has which disk, and which disks are still to be copied.
func (vm *VirtualMachine) Knows(vmi *VirtualMachineInstance, rollout RolloutStrategy) bool {
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		named, info := v.Claim(), vmi.Status.ClaimInfo(v.Name)
		if named != nil && !named.Overlay && info != nil && vm.Status.HeldBy(named.Name) != info.ClaimName && !vm.wants(v, info.ClaimName) {
			return false
		}
	}
	copied, _ := vm.VolumeUpdates(vmi, rollout)
	return slices.EqualFunc(vm.Status.PendingVolumes(), copied, StorageMigratedVolumeInfo.IsSame)
}

// wants says whether the template puts a volume of the VirtualMachineInstance on another claim than its spec
// names, and the disk is there.
func (vm *VirtualMachine) wants(v *Volume, has string) bool {
	return slices.ContainsFunc(vm.Spec.Template.Spec.Volumes, func(now Volume) bool {
		claim := now.Claim()
		return now.Name == v.Name && claim != nil && claim.Name != v.Claim().Name && vm.Status.HeldBy(claim.Name) == has
	})
}

// KeepsHeld says whether a VM notes for the next start which claim has the disk of a claim that the
// VirtualMachineInstance's spec names. It does not if the template names the claim that has the disk, or if a
// user named the claim to which a migration has just copied: the spec names that claim soon.
func (vm *VirtualMachine) KeepsHeld(vmi *VirtualMachineInstance, v *Volume, has string) bool {
	return !vm.wants(v, has) && (vmi.DeletionTimestamp != nil || !vmi.namedByUser(v, has))
}

// namedByUser says whether the migration that is under way copies a volume to a claim that a user named.
func (vmi *VirtualMachineInstance) namedByUser(v *Volume, claim string) bool {
	return slices.ContainsFunc(vmi.Status.MigratedVolumes, func(m StorageMigratedVolumeInfo) bool {
		return m.VolumeName == v.Name && m.DestinationPVCInfo != nil && m.DestinationPVCInfo.ClaimName == claim && !vmi.makes(&m)
	})
}

// makes says whether the migration makes the claim to which it copies a volume's disk.
func (vmi *VirtualMachineInstance) makes(m *StorageMigratedVolumeInfo) bool {
	i := slices.IndexFunc(vmi.Spec.Volumes, func(v Volume) bool { return v.Name == m.VolumeName && v.Claim() != nil })
	return i >= 0 && vmi.Status.MigrationState != nil && m.DestinationPVCInfo.ClaimName == CopyName(vmi.Spec.Volumes[i].Claim().Name, vmi.Status.MigrationState.MigrationUID)
}

// UserClaims are the volumes that the VirtualMachineInstance's last migration copies to claims that users named. The other claims are made by
// the migration.
func (vmi *VirtualMachineInstance) UserClaims() []StorageMigratedVolumeInfo {
	var out []StorageMigratedVolumeInfo
	for _, m := range vmi.Status.MigratedVolumes {
		if m.DestinationPVCInfo != nil && !vmi.makes(&m) {
			out = append(out, m)
		}
	}
	return out
}

// IsSame says whether two updates put the same volume from the same claim on the same claim.
func (m StorageMigratedVolumeInfo) IsSame(other StorageMigratedVolumeInfo) bool {
	name := func(i *PersistentVolumeClaimInfo) string {
		if i == nil {
			return ""
		}
		return i.ClaimName
	}
	return m.VolumeName == other.VolumeName && name(m.SourcePVCInfo) == name(other.SourcePVCInfo) && name(m.DestinationPVCInfo) == name(other.DestinationPVCInfo)
}
