package v1

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A migration can replace a claim by another. Package claimcopy has the rules: who makes the new claim, and who deletes
// which claim when. While the migration is under way, the VirtualMachineInstance's status says which claims it
// replaces: status.migratedVolumes those of disks, and status.migrationState that of the guest's state.

const (
	// CopyOfLabel is on a claim that a migration makes. Its value is the UID of the migration.
	CopyOfLabel = "kubeqemu.io/copied-by-migration"
	// CopyOfAnnotation is on such a claim, too. It names the claim that the new claim replaces. For a disk that is the
	// claim of the VirtualMachine's template, whichever claim had the disk. For the guest's state it is the claim that
	// the state leaves: while that claim is there to stay, the state is there.
	CopyOfAnnotation = "kubeqemu.io/copy-of"
	// CopyOfUIDAnnotation is on a claim for the guest's state, too: the UID of the claim that the state leaves. A claim
	// that somebody makes later with that name is another.
	CopyOfUIDAnnotation = "kubeqemu.io/copy-of-uid"
)

// CopyName returns the name of the claim that a migration makes for a disk. claim is the claim that the spec names, so
// that the names of later copies do not grow. The name is the same each time that it is asked for.
func CopyName(claim string, migration types.UID) string {
	return derivedName("", claim, types.UID(claim), migration, maxClaimName)
}

// CopiedDisk returns the claim that the spec names of a disk, if a migration has made a claim for it, or "". The labels
// and annotations alone will not do: whoever makes a claim like another one may take them over.
func CopiedDisk(claim *corev1.PersistentVolumeClaim) string {
	of := claim.Annotations[CopyOfAnnotation]
	if claim.Name != CopyName(of, types.UID(claim.Labels[CopyOfLabel])) {
		return ""
	}
	return of
}

// StorageMigratedVolumeInfo says between which claims a migration copies the disk of a volume.
type StorageMigratedVolumeInfo struct {
	// VolumeName is the volume's name in the spec.
	VolumeName string `json:"volumeName"`
	// SourcePVCInfo is about the claim that the guest leaves.
	// +optional
	SourcePVCInfo *PersistentVolumeClaimInfo `json:"sourcePVCInfo,omitempty"`
	// DestinationPVCInfo is about the claim that the guest is to have on the target.
	// +optional
	DestinationPVCInfo *PersistentVolumeClaimInfo `json:"destinationPVCInfo,omitempty"`
}

// From returns the name of the claim that the guest leaves, or "" if the name is not known.
func (m *StorageMigratedVolumeInfo) From() string { return m.SourcePVCInfo.name() }

// To returns the name of the claim that the guest is to have, or "" if the name is not known.
func (m *StorageMigratedVolumeInfo) To() string { return m.DestinationPVCInfo.name() }

// IsSame reports whether two updates put the same volume from the same claim on the same claim.
func (m StorageMigratedVolumeInfo) IsSame(other StorageMigratedVolumeInfo) bool {
	return m.VolumeName == other.VolumeName && m.From() == other.From() && m.To() == other.To()
}

// CanCopy reports whether a migration can copy the disk of a volume to another claim: the guest writes to the disk, and
// the disk lies on the file system of a claim.
func (vmi *VirtualMachineInstance) CanCopy(v *Volume) bool {
	info := vmi.Status.ClaimInfo(v.Name)
	return v.updatable() && info != nil && !info.IsBlock() && vmi.WritesTo(v.Name)
}

// WritesTo reports whether the guest writes to a volume, which is one of its disks.
func (vmi *VirtualMachineInstance) WritesTo(volume string) bool {
	return slices.ContainsFunc(vmi.Spec.Domain.Devices.Disks, func(d Disk) bool {
		_, readOnly := d.Target()
		return d.Name == volume && !readOnly
	})
}

// MigratesVolume reports whether the migration that is under way copies a volume's disk to another claim.
func (s *VirtualMachineInstanceStatus) MigratesVolume(volume string) bool {
	return slices.ContainsFunc(s.MigratedVolumes,
		func(m StorageMigratedVolumeInfo) bool { return m.VolumeName == volume })
}

// Moves reports whether a migration copies a volume's disk to another claim: the migration that is under way, or else
// one that would begin now.
func (vmi *VirtualMachineInstance) Moves(volume string) bool {
	if vmi.Migration() != nil {
		return vmi.Status.MigratesVolume(volume)
	}
	return vmi.MovesTo(volume) != nil || vmi.CopiesClaim(volume)
}

// CopiesClaim reports whether a migration that would begin now makes a claim for a volume's disk and copies the disk
// there, because a MigrationPolicy permits it.
func (vmi *VirtualMachineInstance) CopiesClaim(volume string) bool {
	s := vmi.Status.Volume(volume)
	return s != nil && s.Moves
}

// CopiesClaims reports whether a migration that would begin now copies the disks of claims because a MigrationPolicy
// permits it.
func (vmi *VirtualMachineInstance) CopiesClaims() bool {
	return slices.ContainsFunc(vmi.Status.VolumeStatus, func(s VolumeStatus) bool { return s.Moves })
}

// Makes reports whether the VirtualMachineInstance's last migration makes the claim to which it copies a disk. The
// migration does not make a claim that a user named.
func (vmi *VirtualMachineInstance) Makes(m *StorageMigratedVolumeInfo) bool {
	v := vmi.Spec.Volume(m.VolumeName)
	return v != nil && v.Claim() != nil && vmi.Status.MigrationState != nil &&
		m.To() == CopyName(v.Claim().Name, vmi.Status.MigrationState.MigrationUID)
}

// UserClaims returns the volumes that the VirtualMachineInstance's last migration copies to claims that users named.
// The migration makes the other claims.
func (vmi *VirtualMachineInstance) UserClaims() []StorageMigratedVolumeInfo {
	return slices.DeleteFunc(slices.Clone(vmi.Status.MigratedVolumes),
		func(m StorageMigratedVolumeInfo) bool { return m.DestinationPVCInfo == nil || vmi.Makes(&m) })
}

// hold writes into the status that the guest has one of the two claims of each volume that the migration copies.
func (s *VirtualMachineInstanceStatus) hold(which func(*StorageMigratedVolumeInfo) *PersistentVolumeClaimInfo) {
	for i := range s.MigratedVolumes {
		m := &s.MigratedVolumes[i]
		if v, has := s.Volume(m.VolumeName), which(m); v != nil && has != nil {
			v.PersistentVolumeClaimInfo = has.DeepCopy()
		}
	}
}

// TakeDestinations writes into the status that the guest has the target's claim of each volume that the migration
// copies.
func (s *VirtualMachineInstanceStatus) TakeDestinations() { s.hold(destinationClaim) }

func sourceClaim(m *StorageMigratedVolumeInfo) *PersistentVolumeClaimInfo { return m.SourcePVCInfo }

func destinationClaim(m *StorageMigratedVolumeInfo) *PersistentVolumeClaimInfo {
	return m.DestinationPVCInfo
}

// TakeState writes into the status that the guest's state is on the claim of the migration's target.
func (vmi *VirtualMachineInstance) TakeState() {
	m, info := vmi.Status.MigrationState, vmi.StateClaimInfo()
	if info == nil || m == nil || m.TargetPersistentStatePVCName == "" ||
		m.TargetPersistentStatePVCName == info.ClaimName {
		return
	}
	s := vmi.Status.Volume(info.ClaimName)
	s.Name, s.PersistentVolumeClaimInfo = m.TargetPersistentStatePVCName, info.DeepCopy()
	s.PersistentVolumeClaimInfo.ClaimName, s.PersistentVolumeClaimInfo.Capacity = s.Name, nil
}
