package v1

import (
	pathpkg "path"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// HostDiskType says whether a hostDisk's file must be there.
type HostDiskType string

// Types of hostDisks.
const (
	// HostDiskExists: the file must be there.
	HostDiskExists HostDiskType = "Disk"
	// HostDiskExistsOrCreate: a missing file is made.
	HostDiskExistsOrCreate HostDiskType = "DiskOrCreate"
)

// HostDisk is a raw disk in a file of the node. The pod gets the file's folder as a hostPath
// volume. Namespaces that enforce the Pod Security Standard baseline or restricted permit no
// such volume.
type HostDisk struct {
	// Path of the file on the node: absolute, without ".", "..", ":" and ",". User or group 107
	// must be able to write to the file (Disk), or to its folder (DiskOrCreate). No symbolic
	// link leads out of the permitted folder.
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/[^:,]+$`
	Path string `json:"path"`
	// Type is Disk: the file must exist; or DiskOrCreate: a missing file is made, sparse.
	// +kubebuilder:validation:Enum=Disk;DiskOrCreate
	Type HostDiskType `json:"type"`
	// Capacity of a disk that is made, 64Ti at most, rounded up to 512 bytes; an existing disk
	// keeps its size. Required with DiskOrCreate, refused with Disk. Exponents are refused.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^[0-9.]{1,20}([KMGTPE]i?|[numk])?$`
	Capacity *resource.Quantity `json:"capacity,omitempty"`
	// Shared says that the file is the same on all nodes. Then the guest can move to another node.
	// +optional
	Shared *bool `json:"shared,omitempty"`
}

// IsCleanPath reports whether a path is absolute, and the shortest one for what it names.
func IsCleanPath(p string) bool {
	return pathpkg.IsAbs(p) && pathpkg.Clean(p) == p && !strings.Contains(p, "\x00")
}

// HostDiskConfiguration says which files of the nodes may be disks.
type HostDiskConfiguration struct {
	// Folders of the nodes below which hostDisks may lie. All who may create
	// VirtualMachineInstances can read and write what user or group 107 can access there.
	// Default: none, which refuses hostDisks.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:Pattern=`^/[^:,]+$`
	Folders []string `json:"folders,omitempty"`
}

// HostDiskFolder returns the longest permitted folder above a hostDisk, and the disk's path below
// that folder. permitted is false if there is no such folder.
func (c *KubeVirtConfiguration) HostDiskFolder(h *HostDisk) (folder, below string, permitted bool) {
	if c.HostDisk == nil || !IsCleanPath(h.Path) {
		return "", "", false
	}
	for _, f := range c.HostDisk.Folders {
		rest, ok := strings.CutPrefix(h.Path, f+"/")
		if ok && IsCleanPath(f) && f != "/" && len(f) > len(folder) {
			folder, below, permitted = f, rest, true
		}
	}
	return folder, below, permitted
}
