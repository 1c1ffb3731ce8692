package v1

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Filesystem shares the files of a volume with the guest. The guest mounts them by the volume's name:
// mount -t virtiofs NAME /mnt.
type Filesystem struct {
	// Name of the volume whose files it shares: a persistentVolumeClaim, dataVolume, configMap, secret, downwardAPI
	// or serviceAccount. The guest finds the file system by this name, which has 36 characters at most.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=36
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// Virtiofs: a program in a container of its own serves the files (virtiofsd).
	Virtiofs *FilesystemVirtiofs `json:"virtiofs"`
}

// FilesystemVirtiofs has no fields yet.
type FilesystemVirtiofs struct{}

const (
	// maxFilesystemName is the room of virtio-fs for the name of a file system.
	maxFilesystemName = 36
	// maxFilesystems bounds the containers of a launcher pod.
	maxFilesystems = 16
	// FilesystemContainerPrefix and a volume's name are the name of the container that shares the volume's files, as in KubeVirt.
	FilesystemContainerPrefix = "virtiofs-"
)

// ReasonVirtioFSNotMigratable is KubeVirt's: a file system keeps the guest on its node.
const ReasonVirtioFSNotMigratable = "VirtIOFSNotLiveMigratable"

// IsFilesystem says whether the guest gets the volume's files, and no disk.
func (spec *VirtualMachineInstanceSpec) IsFilesystem(volume string) bool {
	return slices.ContainsFunc(spec.Domain.Devices.Filesystems, func(f Filesystem) bool { return f.Name == volume })
}

// IsConfigDisk says whether the launcher makes a disk of the volume's files. A volume with an ACPI table may have no disk.
func (spec *VirtualMachineInstanceSpec) IsConfigDisk(v *Volume) bool {
	shown := slices.ContainsFunc(spec.Domain.Devices.Disks, func(d Disk) bool { return d.Name == v.Name })
	return v.IsConfig() && !spec.IsFilesystem(v.Name) && (shown || !spec.IsACPITable(v.Name))
}

// CanBeFilesystem says whether the volume has files that a guest can share.
func (v *Volume) CanBeFilesystem() bool {
	return v.PersistentVolumeClaim != nil || v.DataVolume != nil || v.IsConfig() && v.Sysprep == nil
}

// volumeKind is the field that says what the volume is; empty for a volume that is nothing.
func volumeKind(v *Volume) string {
	for _, k := range []struct {
		name string
		is   bool
	}{
		{"containerDisk", v.ContainerDisk != nil}, {"cloudInitNoCloud", v.CloudInitNoCloud != nil}, {"cloudInitConfigDrive", v.CloudInitConfigDrive != nil},
		{"emptyDisk", v.EmptyDisk != nil}, {"ephemeral", v.Ephemeral != nil}, {"hostDisk", v.HostDisk != nil}, {"sysprep", v.Sysprep != nil},
	} {
		if k.is {
			return k.name
		}
	}
	return ""
}

func validateFilesystems(spec *VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
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
		v := slices.IndexFunc(spec.Volumes, func(v Volume) bool { return v.Name == f.Name })
		switch {
		case v < 0:
			errs = append(errs, field.NotFound(name, f.Name+" (no volume of this name in spec.volumes)"))
		case slices.ContainsFunc(spec.Domain.Devices.Disks, func(d Disk) bool { return d.Name == f.Name }):
			errs = append(errs, field.Invalid(name, f.Name, "the volume is a disk too; a volume is either a disk or a file system"))
		case !spec.Volumes[v].CanBeFilesystem() && volumeKind(&spec.Volumes[v]) != "":
			errs = append(errs, field.Invalid(name, f.Name, fmt.Sprintf("the volume is a %s, which has no files to share; a file system needs a persistentVolumeClaim, dataVolume, configMap, secret, downwardAPI or serviceAccount",
				volumeKind(&spec.Volumes[v]))))
		}
	}
	return errs
}

// ValidateFilesystemClaims refuses file systems on claims that are devices, by what the VMI's status knows of its claims.
func ValidateFilesystemClaims(vmi *VirtualMachineInstance) field.ErrorList {
	var errs field.ErrorList
	for i, f := range vmi.Spec.Domain.Devices.Filesystems {
		if info := vmi.Status.ClaimInfo(f.Name); info != nil && info.IsBlock() {
			errs = append(errs, field.Invalid(field.NewPath("spec", "domain", "devices", "filesystems").Index(i).Child("name"), f.Name,
				fmt.Sprintf("the claim %s is a device (volumeMode: Block), which has no files to share; use a claim of mode Filesystem, or a disk", info.ClaimName)))
		}
	}
	return errs
}

// filesystemsStay is why a file system keeps the guest on its node; empty if none does.
func (vmi *VirtualMachineInstance) filesystemsStay() string {
	if c := vmi.Status.Condition(ConditionFilesystemFailed); c != nil && c.Status == metav1.ConditionTrue {
		return "a file system of the guest has failed, so that there is no state of it that could move; the guest can move when the VM was stopped and started"
	}
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		claim := vmi.Claim(v)
		if claim == nil || !vmi.Spec.IsFilesystem(v.Name) {
			continue
		}
		info := vmi.Status.ClaimInfo(v.Name)
		switch {
		case info == nil:
			return fmt.Sprintf("spec.volumes[%d], %s, is a file system on the claim %s, of which nothing is known yet", i, v.Name, claim.Name)
		case info.IsShared(), claim.ReadOnly && slices.Contains(info.AccessModes, corev1.ReadOnlyMany):
		default:
			return fmt.Sprintf("spec.volumes[%d], %s, is a file system on the claim %s, which only one node can use: its access modes %v lack ReadWriteMany", i, v.Name, claim.Name, info.AccessModes)
		}
	}
	return ""
}
