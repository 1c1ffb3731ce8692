package validation

import (
	"strings"

	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func validateClaimSource(s *v1.PersistentVolumeClaimVolumeSource, path *field.Path) field.ErrorList {
	return validateClaimName(s.ClaimName, path.Child("claimName"))
}

func validateClaimName(name string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, message := range utilvalidation.IsDNS1123Subdomain(name) {
		errs = append(errs, field.Invalid(path, name, message))
	}
	return errs
}

func validateEphemeral(s *v1.EphemeralVolumeSource, path *field.Path) field.ErrorList {
	if s.PersistentVolumeClaim == nil {
		return field.ErrorList{field.Required(path.Child("persistentVolumeClaim"), "name the claim that is read")}
	}
	return validateClaimName(s.PersistentVolumeClaim.ClaimName, path.Child("persistentVolumeClaim", "claimName"))
}

func validateHostDisk(h *v1.HostDisk, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !v1.IsCleanPath(h.Path) || h.Path == "/" || strings.ContainsAny(h.Path, ":,") {
		errs = append(errs, field.Invalid(path.Child("path"), h.Path,
			`must be an absolute path without ".", "..", "//", ":" and ","`))
	}
	switch h.Type {
	case v1.HostDiskExists:
		if h.Capacity != nil {
			errs = append(errs, field.Forbidden(path.Child("capacity"), "only a disk of type DiskOrCreate is made"))
		}
	case v1.HostDiskExistsOrCreate:
		if h.Capacity == nil {
			errs = append(errs, field.Required(path.Child("capacity"), "say how large the disk is that is made"))
		} else if h.Capacity.Sign() <= 0 || !within(*h.Capacity, 0, maxDiskBytes) {
			errs = append(errs, field.Invalid(path.Child("capacity"), h.Capacity.String(), "must be between 1 and 64Ti"))
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("type"), h.Type,
			[]v1.HostDiskType{v1.HostDiskExists, v1.HostDiskExistsOrCreate}))
	}
	return errs
}

// ValidateHostDisks returns an error for each hostDisk that the cluster's configuration does
// not permit. It is called before every pod is made, because it protects the nodes.
func ValidateHostDisks(vmi *v1.VirtualMachineInstance, config *v1.KubeVirtConfiguration) field.ErrorList {
	var errs field.ErrorList
	for i, v := range vmi.Spec.Volumes {
		if v.HostDisk == nil {
			continue
		}
		if _, _, ok := config.HostDiskFolder(v.HostDisk); !ok {
			errs = append(errs, field.Forbidden(field.NewPath("spec", "volumes").Index(i).Child("hostDisk", "path"),
				"lies below no folder that the cluster's configuration permits (hostDisk.folders in the KubeVirt object's "+
					"configuration)"))
		}
	}
	return errs
}
