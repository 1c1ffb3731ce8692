package v1

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

// PersistentVolumeClaimVolumeSource is a disk that outlives the VMI. On a volume of mode
// Filesystem the disk is the file disk.img in the volume's root; a missing file is made,
// sparse. On a volume of mode Block the disk is the device. The disk is always raw: QEMU never
// looks for another format in it.
type PersistentVolumeClaimVolumeSource struct {
	// ClaimName names a PersistentVolumeClaim of the namespace. While it is
	// missing, the VMI waits for it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ClaimName string `json:"claimName"`
	// ReadOnly mounts the volume read-only, and the guest cannot write. Refused for a SATA hard
	// disk. Default: false.
	// +optional
	ReadOnly bool `json:"readOnly,omitempty"`

	// Hotpluggable is refused: not supported yet: there is no hotplug yet.
	// +optional
	Hotpluggable UnsupportedBool `json:"hotpluggable,omitempty" later:"there is no hotplug yet"`
}

// DataVolumeGroupVersionKind is the kind of CDI's DataVolumes. The cluster may lack it.
var DataVolumeGroupVersionKind = schema.GroupVersionKind{Group: "cdi.kubevirt.io", Version: "v1beta1",
	Kind: "DataVolume"}

// DataVolumeSource is the disk of a DataVolume (cdi.kubevirt.io), on the claim of the same
// name. The disk lies there as PersistentVolumeClaimVolumeSource says.
type DataVolumeSource struct {
	// Name of a DataVolume of the namespace, and of its claim. While the claim is missing, or
	// being filled, the VMI waits. A claim of this name that no DataVolume owns is used as it
	// is.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// Hotpluggable is refused: not supported yet: there is no hotplug yet.
	// +optional
	Hotpluggable UnsupportedBool `json:"hotpluggable,omitempty" later:"there is no hotplug yet"`
}

// EphemeralVolumeSource is a disk on a claim that is only read, under an overlay
// that takes what the guest writes.
type EphemeralVolumeSource struct {
	// PersistentVolumeClaim is the claim. Several VMIs may use it, if its access modes permit;
	// its disk.img or device must exist.
	PersistentVolumeClaim *EphemeralClaim `json:"persistentVolumeClaim"`
}

// EphemeralClaim names a claim that is only read.
type EphemeralClaim struct {
	// ClaimName names a PersistentVolumeClaim of the namespace. While it is
	// missing, the VMI waits for it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ClaimName string `json:"claimName"`
	// ReadOnly asks the storage itself for a read-only volume: some storage gives only such a
	// volume to several nodes. Default: false: only the launcher's mount is read-only.
	// +optional
	ReadOnly bool `json:"readOnly,omitempty"`
}

// VolumeClaim is how a volume uses a claim.
//
// +kubebuilder:object:generate=false
type VolumeClaim struct {
	Name string
	// ReadOnly: the claim's disk is not written to.
	ReadOnly bool
	// ReadOnlyVolume: the storage is asked for a read-only volume.
	ReadOnlyVolume bool
	// Overlay takes what the guest writes.
	Overlay bool
}

// Volume returns the volume of a name, or nil.
func (s *VirtualMachineInstanceSpec) Volume(name string) *Volume {
	i := slices.IndexFunc(s.Volumes, func(v Volume) bool { return v.Name == name })
	if i < 0 {
		return nil
	}
	return &s.Volumes[i]
}

// Claim returns how the volume uses a claim, or nil.
func (v *Volume) Claim() *VolumeClaim {
	switch {
	case v.PersistentVolumeClaim != nil:
		c := v.PersistentVolumeClaim
		return &VolumeClaim{Name: c.ClaimName, ReadOnly: c.ReadOnly, ReadOnlyVolume: c.ReadOnly}
	case v.DataVolume != nil:
		return &VolumeClaim{Name: v.DataVolume.Name}
	case v.Ephemeral != nil && v.Ephemeral.PersistentVolumeClaim != nil:
		c := v.Ephemeral.PersistentVolumeClaim
		return &VolumeClaim{Name: c.ClaimName, ReadOnly: true, ReadOnlyVolume: c.ReadOnly, Overlay: true}
	}
	return nil
}

// VolumeStatus is the status of one of the spec's volumes, or of the claim with the guest's state.
type VolumeStatus struct {
	// Name of the volume.
	Name string `json:"name"`
	// Target is what KubeVirt calls the disk: vda, vdb, … on virtio, sda, … on
	// the other buses, in the spec's order. The guest may name it otherwise.
	// +optional
	Target string `json:"target,omitempty"`
	// PersistentVolumeClaimInfo is about the claim that has the volume's disk now.
	// +optional
	PersistentVolumeClaimInfo *PersistentVolumeClaimInfo `json:"persistentVolumeClaimInfo,omitempty"`
	// Moves: a migration copies the disk to another claim, because a MigrationPolicy permits it. KubeVirt
	// has no such field.
	// +optional
	Moves bool `json:"moves,omitempty"`
	// MovesTo is the claim that the VirtualMachine's template names now, and to which the next migration
	// copies the disk. KubeVirt has no such field.
	// +optional
	MovesTo *PersistentVolumeClaimInfo `json:"movesTo,omitempty"`
}

// PersistentVolumeClaimInfo is what the status shows of a claim.
type PersistentVolumeClaimInfo struct {
	// ClaimName is the claim's name.
	// +optional
	ClaimName string `json:"claimName,omitempty"`
	// AccessModes that the claim asks for.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	AccessModes []corev1.PersistentVolumeAccessMode `json:"accessModes,omitempty"`
	// VolumeMode is Filesystem or Block.
	// +optional
	VolumeMode *corev1.PersistentVolumeMode `json:"volumeMode,omitempty"`
	// Capacity of the bound volume; unset before it is bound.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// Requests is the storage that the claim asks for.
	// +optional
	Requests corev1.ResourceList `json:"requests,omitempty"`
	// FilesystemOverhead is the part of a Filesystem volume, from 0 to 1, that disk.img leaves
	// to the file system.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	FilesystemOverhead string `json:"filesystemOverhead,omitempty"`
}

// DefaultFilesystemOverhead is the FilesystemOverhead of volumes, KubeVirt's.
const DefaultFilesystemOverhead = "0.055"

// name returns the claim's name, or "" of nothing.
func (i *PersistentVolumeClaimInfo) name() string {
	if i == nil {
		return ""
	}
	return i.ClaimName
}

// IsBlock reports whether the claim's volume is a block device.
func (i *PersistentVolumeClaimInfo) IsBlock() bool {
	return i.VolumeMode != nil && *i.VolumeMode == corev1.PersistentVolumeBlock
}

// IsShared reports whether the guests of all nodes can write to the claim's volume.
func (i *PersistentVolumeClaimInfo) IsShared() bool {
	return slices.Contains(i.AccessModes, corev1.ReadWriteMany)
}

// IsBound reports whether the capacity of the claim's volume is known.
func (i *PersistentVolumeClaimInfo) IsBound() bool {
	_, bound := i.Capacity[corev1.ResourceStorage]
	return bound
}

// DiskSize returns the size, in bytes, that a disk on the claim's volume may have: the smaller of
// capacity and request. On a file system, the overhead is subtracted, and the size is a
// multiple of 1 MiB. DiskSize is 0 while the claim is not bound.
func (i *PersistentVolumeClaimInfo) DiskSize() int64 {
	if !i.IsBound() {
		return 0
	}
	capacity := i.Capacity[corev1.ResourceStorage]
	size := capacity.Value()
	if request, ok := i.Requests[corev1.ResourceStorage]; ok {
		size = min(size, request.Value())
	}
	if i.IsBlock() {
		return size
	}
	const mib = 1 << 20
	return (size - size/1000*55) / mib * mib
}

// Volume returns the status of a volume, or nil.
func (s *VirtualMachineInstanceStatus) Volume(name string) *VolumeStatus {
	i := slices.IndexFunc(s.VolumeStatus, func(v VolumeStatus) bool { return v.Name == name })
	if i < 0 {
		return nil
	}
	return &s.VolumeStatus[i]
}

// ClaimInfo returns what the status says of a volume's claim, or nil.
func (s *VirtualMachineInstanceStatus) ClaimInfo(volume string) *PersistentVolumeClaimInfo {
	if v := s.Volume(volume); v != nil {
		return v.PersistentVolumeClaimInfo
	}
	return nil
}

// InfoOfClaim returns what a status shows of a claim.
func InfoOfClaim(claim *corev1.PersistentVolumeClaim) *PersistentVolumeClaimInfo {
	info := &PersistentVolumeClaimInfo{
		ClaimName: claim.Name, AccessModes: claim.Spec.AccessModes,
		VolumeMode: ptr.To(ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)),
		Requests:   OnlyStorage(claim.Spec.Resources.Requests),
	}
	if claim.Status.Phase == corev1.ClaimBound {
		info.Capacity = OnlyStorage(claim.Status.Capacity)
	}
	if !info.IsBlock() {
		info.FilesystemOverhead = DefaultFilesystemOverhead
	}
	return info
}

// OnlyStorage returns a list without anything but storage.
func OnlyStorage(list corev1.ResourceList) corev1.ResourceList {
	storage, ok := list[corev1.ResourceStorage]
	if !ok {
		return nil
	}
	return corev1.ResourceList{corev1.ResourceStorage: storage}
}
