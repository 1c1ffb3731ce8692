package validation

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const (
	// maxFilesystemName is the room of virtio-fs for the name of a file system.
	maxFilesystemName = 36
	// maxFilesystems bounds the containers of a launcher pod.
	maxFilesystems = 16
)

// volumeKind returns the field that says what the volume is, or an empty text for a volume that is nothing.
func volumeKind(v *v1.Volume) string {
	for _, k := range []struct {
		name string
		is   bool
	}{
		{"containerDisk", v.ContainerDisk != nil}, {"cloudInitNoCloud", v.CloudInitNoCloud != nil},
		{"cloudInitConfigDrive", v.CloudInitConfigDrive != nil},
		{"emptyDisk", v.EmptyDisk != nil}, {"ephemeral", v.Ephemeral != nil}, {"hostDisk", v.HostDisk != nil},
		{"sysprep", v.Sysprep != nil},
	} {
		if k.is {
			return k.name
		}
	}
	return ""
}

func validateFilesystems(spec *v1.VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
	list := spec.Domain.Devices.Filesystems
	if len(list) > maxFilesystems {
		return field.ErrorList{field.TooMany(path, len(list), maxFilesystems)}
	}
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, f := range list {
		p := path.Index(i)
		name := p.Child("name")
		if seen.Has(f.Name) {
			errs = append(errs, field.Duplicate(name, f.Name))
		}
		seen.Insert(f.Name)
		if f.Virtiofs == nil {
			errs = append(errs, field.Required(p.Child("virtiofs"), "it is the only kind of file system: write virtiofs: {}"))
		}
		if len(f.Name) > maxFilesystemName {
			errs = append(errs, field.TooLong(name, f.Name, maxFilesystemName))
		}
		v := slices.IndexFunc(spec.Volumes, func(v v1.Volume) bool { return v.Name == f.Name })
		switch {
		case v < 0:
			errs = append(errs, field.NotFound(name, f.Name+" (no volume of this name in spec.volumes)"))
		case slices.ContainsFunc(spec.Domain.Devices.Disks, func(d v1.Disk) bool { return d.Name == f.Name }):
			errs = append(errs, field.Invalid(name, f.Name,
				"the volume is a disk too; a volume is either a disk or a file system"))
		case !spec.Volumes[v].CanBeFilesystem() && volumeKind(&spec.Volumes[v]) != "":
			errs = append(errs, field.Invalid(name, f.Name, fmt.Sprintf("the volume is a %s, which has no files to share; a "+
				"file system needs a persistentVolumeClaim, dataVolume, configMap, secret, downwardAPI or serviceAccount",
				volumeKind(&spec.Volumes[v]))))
		}
	}
	return errs
}

// ValidateFilesystemClaims refuses file systems on claims that are devices, by what the VMI's status knows of its
// claims.
func ValidateFilesystemClaims(vmi *v1.VirtualMachineInstance) field.ErrorList {
	var errs field.ErrorList
	for i, f := range vmi.Spec.Domain.Devices.Filesystems {
		if info := vmi.Status.ClaimInfo(f.Name); info != nil && info.IsBlock() {
			errs = append(errs, field.Invalid(field.NewPath("spec", "domain", "devices", "filesystems").Index(i).Child("name"),
				f.Name,
				fmt.Sprintf("the claim %s is a device (volumeMode: Block), which has no files to share; use a claim of mode "+
					"Filesystem, or a disk", info.ClaimName)))
		}
	}
	return errs
}
