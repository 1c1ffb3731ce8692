package v1

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// A migration can copy the disk of a claim that only one node can use to a claim of another node. The template of the
// VirtualMachine then still names the old claim, and so does the spec of the VirtualMachineInstance. These facts say
// where the disk is:
//
//   - status.volumeStatus of the VirtualMachineInstance names the claim that has the disk now;
//   - status.migratedVolumes of the VirtualMachineInstance says between which claims the migration that is under way
//     copies;
//   - status.movedClaims of the VirtualMachine keeps the claim for the next start, and ClaimsAnnotation hands it to
//     the VirtualMachineInstance of that start.

const (
	// ClaimsAnnotation of a VirtualMachineInstance is a JSON object. It maps claims that the spec names to the claims
	// that have their disks.
	ClaimsAnnotation = "kubeqemu.io/claims"
	// CopyOfLabel is on a claim to which a migration copies a disk. Its value is the UID of the migration.
	CopyOfLabel = "kubeqemu.io/copied-by-migration"
	// CopyOfAnnotation is on such a claim, too. It names the claim of the VirtualMachine's template whose disk it has.
	CopyOfAnnotation = "kubeqemu.io/copy-of"
)

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

// MovedClaim is a claim of the template whose disk is on another claim.
type MovedClaim struct {
	// ClaimName is the claim that the template names.
	// +kubebuilder:validation:MaxLength=253
	ClaimName string `json:"claimName"`
	// HeldBy is the claim that has the disk.
	// +kubebuilder:validation:MaxLength=253
	HeldBy string `json:"heldBy"`
	// CleanedUp is the UID of the last migration after which the claims that the disk had left were deleted.
	// +optional
	CleanedUp types.UID `json:"cleanedUp,omitempty"`
}

// Claim is how a volume uses the claim that has its disk now, or nil. The name of the claim may be another than that in
// the spec.
func (vmi *VirtualMachineInstance) Claim(v *Volume) *VolumeClaim {
	claim := v.Claim()
	if claim == nil {
		return nil
	}
	if info := vmi.Status.ClaimInfo(v.Name); info != nil && info.ClaimName != "" {
		claim.Name = info.ClaimName
	} else if held := vmi.heldClaims()[claim.Name]; !claim.Overlay && len(validation.IsDNS1123Subdomain(held)) == 0 {
		claim.Name = held
	}
	return claim
}

// heldClaims are the claims that ClaimsAnnotation names, by the claims in the spec. An annotation that cannot be read names none.
func (vmi *VirtualMachineInstance) heldClaims() map[string]string {
	text := vmi.Annotations[ClaimsAnnotation]
	if text == "" {
		return nil
	}
	var claims map[string]string
	if json.Unmarshal([]byte(text), &claims) != nil {
		return nil
	}
	return claims
}

// MigratesVolume says whether the migration that is under way copies a volume's disk to another claim.
func (s *VirtualMachineInstanceStatus) MigratesVolume(volume string) bool {
	return slices.ContainsFunc(s.MigratedVolumes, func(m StorageMigratedVolumeInfo) bool { return m.VolumeName == volume })
}

// Moves says whether a migration copies a volume's disk to another claim: the migration that is under way, or else
// one that would begin now.
func (vmi *VirtualMachineInstance) Moves(volume string) bool {
	if vmi.Migration() != nil {
		return vmi.Status.MigratesVolume(volume)
	}
	return vmi.MovesTo(volume) != nil || vmi.CopiesClaim(volume)
}

// CopiesClaim says whether a migration that would begin now makes a claim for a volume's disk and copies the disk there, because a
// MigrationPolicy permits it.
func (vmi *VirtualMachineInstance) CopiesClaim(volume string) bool {
	return slices.ContainsFunc(vmi.Status.VolumeStatus, func(s VolumeStatus) bool { return s.Name == volume && s.Moves })
}

// CopiesClaims says whether a migration that would begin now copies the disks of claims because a MigrationPolicy permits
// it.
func (vmi *VirtualMachineInstance) CopiesClaims() bool {
	return slices.ContainsFunc(vmi.Status.VolumeStatus, func(s VolumeStatus) bool { return s.Moves })
}

// hold takes over that the guest has one of the two claims of each volume that the migration copies.
func (s *VirtualMachineInstanceStatus) hold(which func(*StorageMigratedVolumeInfo) *PersistentVolumeClaimInfo) {
	for i := range s.MigratedVolumes {
		for j := range s.VolumeStatus {
			if has := which(&s.MigratedVolumes[i]); has != nil && s.VolumeStatus[j].Name == s.MigratedVolumes[i].VolumeName {
				s.VolumeStatus[j].PersistentVolumeClaimInfo = has.DeepCopy()
			}
		}
	}
}

// TakeDestinations has the status say of each volume that the migration copies that the guest has the target's claim.
func (s *VirtualMachineInstanceStatus) TakeDestinations() { s.hold(destinationClaim) }

func sourceClaim(m *StorageMigratedVolumeInfo) *PersistentVolumeClaimInfo { return m.SourcePVCInfo }

func destinationClaim(m *StorageMigratedVolumeInfo) *PersistentVolumeClaimInfo {
	return m.DestinationPVCInfo
}

// HeldBy is the claim that has the disk of a claim of the template: another one, or the claim itself.
func (s *VirtualMachineStatus) HeldBy(claim string) string {
	for _, m := range s.MovedClaims {
		if m.ClaimName == claim {
			return m.HeldBy
		}
	}
	return claim
}

// Holds says whether a claim has the disk of another claim, which the template names.
func (s *VirtualMachineStatus) Holds(claim string) bool {
	return slices.ContainsFunc(s.MovedClaims, func(m MovedClaim) bool { return m.HeldBy == claim })
}

// claimsAnnotation is the ClaimsAnnotation of a VM's next VMI, or empty.
func (vm *VirtualMachine) claimsAnnotation() string {
	held := map[string]string{}
	for i := range vm.Spec.Template.Spec.Volumes {
		claim := vm.Spec.Template.Spec.Volumes[i].Claim()
		if claim == nil || claim.Overlay {
			continue
		}
		if by := vm.Status.HeldBy(claim.Name); by != claim.Name {
			held[claim.Name] = by
		}
	}
	if len(held) == 0 {
		return ""
	}
	text, err := json.Marshal(held)
	if err != nil {
		return "" // a map of strings always has a JSON text
	}
	return string(text)
}

// CopyName is the name of the claim to which a migration copies the disk of a volume. claim is the claim that the spec
// names, so that the names of later copies do not grow. The name is the same each time that it is asked for.
func CopyName(claim string, migration types.UID) string {
	sum := sha256.Sum256([]byte(claim + "/" + string(migration)))
	suffix := "-" + hex.EncodeToString(sum[:podHash])
	if len(claim)+len(suffix) > maxClaimName {
		claim = strings.TrimRight(claim[:maxClaimName-len(suffix)], "-.")
	}
	return claim + suffix
}
