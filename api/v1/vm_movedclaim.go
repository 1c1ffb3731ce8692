package v1

import (
	"encoding/json"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// After a migration the template of the VirtualMachine still names the old claim of a disk, unless a user named the
// new one, and so does the spec of the VirtualMachineInstance. This file says where the disk is:
//
//   - status.volumeStatus of the VirtualMachineInstance names the claim that has the disk now;
//   - status.movedClaims of the VirtualMachine keeps the claim for the next start, and ClaimsAnnotation hands it to
//     the VirtualMachineInstance of that start.

// ClaimsAnnotation of a VirtualMachineInstance is a JSON object. It maps claims that the spec names to the claims
// that have their disks.
const ClaimsAnnotation = "kubeqemu.io/claims"

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

// Claim returns how a volume uses the claim that has its disk now, or nil. The name of the claim may be another than
// that in the spec.
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

// VolumeOn returns the volume that a claim has now, or nil.
func (vmi *VirtualMachineInstance) VolumeOn(claim string) *Volume {
	for i := range vmi.Spec.Volumes {
		if has := vmi.Claim(&vmi.Spec.Volumes[i]); has != nil && has.Name == claim {
			return &vmi.Spec.Volumes[i]
		}
	}
	return nil
}

// heldClaims returns the claims that ClaimsAnnotation names, by the claims in the spec. An annotation that cannot be
// read names none.
func (vmi *VirtualMachineInstance) heldClaims() map[string]string {
	var claims map[string]string
	if json.Unmarshal([]byte(vmi.Annotations[ClaimsAnnotation]), &claims) != nil {
		return nil
	}
	return claims
}

// HeldBy returns the claim that has the disk of a claim of the template: another one, or the claim itself.
func (s *VirtualMachineStatus) HeldBy(claim string) string {
	for _, m := range s.MovedClaims {
		if m.ClaimName == claim {
			return m.HeldBy
		}
	}
	return claim
}

// Holds reports whether a claim has the disk of another claim, which the template names.
func (s *VirtualMachineStatus) Holds(claim string) bool {
	return slices.ContainsFunc(s.MovedClaims, func(m MovedClaim) bool { return m.HeldBy == claim })
}

// claimsAnnotation returns the ClaimsAnnotation of a VM's next VMI, or empty.
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
