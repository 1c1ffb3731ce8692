package v1

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

	// FilesystemContainerPrefix and a volume's name are the name of the container that shares the volume's files, as in KubeVirt.
	FilesystemContainerPrefix = "virtiofs-"
)

// ReasonVirtioFSNotMigratable is KubeVirt's: a file system keeps the guest on its node.
const ReasonVirtioFSNotMigratable = "VirtIOFSNotLiveMigratable"

// IsFilesystem reports whether the guest gets the volume's files, and no disk.
func (spec *VirtualMachineInstanceSpec) IsFilesystem(volume string) bool {
	return slices.ContainsFunc(spec.Domain.Devices.Filesystems, func(f Filesystem) bool { return f.Name == volume })
}

// IsConfigDisk reports whether the launcher makes a disk of the volume's files. A volume with an ACPI table may have no
// disk.
func (spec *VirtualMachineInstanceSpec) IsConfigDisk(v *Volume) bool {
	shown := slices.ContainsFunc(spec.Domain.Devices.Disks, func(d Disk) bool { return d.Name == v.Name })
	return v.IsConfig() && !spec.IsFilesystem(v.Name) && (shown || !spec.IsACPITable(v.Name))
}

// CanBeFilesystem reports whether the volume has files that a guest can share.
func (v *Volume) CanBeFilesystem() bool {
	return v.PersistentVolumeClaim != nil || v.DataVolume != nil || v.IsConfig() && v.Sysprep == nil
}

// filesystemsStay returns why a file system keeps the guest on its node, or an empty text if none does.
func (vmi *VirtualMachineInstance) filesystemsStay() string {
	if c := vmi.Status.Condition(ConditionFilesystemFailed); c != nil && c.Status == metav1.ConditionTrue {
		return "a file system of the guest has failed, so that there is no state of it that could move; the guest can move " +
			"when the VM was stopped and started"
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
			return fmt.Sprintf("spec.volumes[%d], %s, is a file system on the claim %s, of which nothing is known yet", i,
				v.Name, claim.Name)
		case info.IsShared(), claim.ReadOnly && slices.Contains(info.AccessModes, corev1.ReadOnlyMany):
		default:
			return fmt.Sprintf("spec.volumes[%d], %s, is a file system on the claim %s, which only one node can use: its "+
				"access modes %v lack ReadWriteMany", i, v.Name, claim.Name, info.AccessModes)
		}
	}
	return ""
}
