// Package resolve decides everything about a VMI's QEMU: VMI and host facts in,
// Machine out. It is pure; what it needs to know of the node and the pod comes
// in as Host.
package resolve

import "github.com/kubeqemu/kubeqemu/qemuargs"

// Host is what the node and the pod say. It can be written as YAML, for tests
// and for "qemuargs render".
type Host struct {
	// Accelerator that guests of this node get.
	Accelerator qemuargs.Accelerator `json:"accelerator"`
	// QEMUVersion of the launcher's QEMU, such as 7.2.22.
	QEMUVersion string `json:"qemuVersion"`
	// ContainerDisks by volume name.
	ContainerDisks map[string]ContainerDisk `json:"containerDisks,omitempty"`
	// Claims by volume name: PersistentVolumeClaims, and files of the node.
	Claims map[string]Claim `json:"claims,omitempty"`
	// OverlayDirect: O_DIRECT works where overlays are made.
	OverlayDirect bool `json:"overlayDirect,omitempty"`
	// Kernel is what the launcher found of the kernel to be booted.
	Kernel *Kernel `json:"kernel,omitempty"`
	// NICs by interface name.
	NICs map[string]NIC `json:"nics,omitempty"`
}

// ContainerDisk is what the launcher found in a container disk's image.
type ContainerDisk struct {
	// Path in the launcher's file system.
	Path   string               `json:"path"`
	Format qemuargs.ImageFormat `json:"format"`
	// VirtualSize in bytes.
	VirtualSize int64 `json:"virtualSize"`
	Direct      bool  `json:"direct,omitempty"`
	// Error says why it cannot be used.
	Error string `json:"error,omitempty"`
}

// Claim is what a PersistentVolumeClaim says of itself, and what the launcher
// found in its volume.
type Claim struct {
	// Block: the volume is a device.
	Block bool `json:"block,omitempty"`
	// DiskSize is how large the disk may be, in bytes.
	DiskSize int64 `json:"diskSize,omitempty"`
	// Missing: there is no disk yet, and one can be made.
	Missing bool `json:"missing,omitempty"`
	// Size of the disk that is there, in bytes.
	Size int64 `json:"size,omitempty"`
	// Free is what the file system has room for, in bytes.
	Free   int64 `json:"free,omitempty"`
	Direct bool  `json:"direct,omitempty"`
	// Error says why it cannot be used.
	Error string `json:"error,omitempty"`
}

// NIC is what is known of the network an interface connects to.
type NIC struct {
	// MTU of the pod's link, which the guest gets too.
	MTU int `json:"mtu"`
	// MAC of the pod's link, which the guest takes over with the bridge binding.
	MAC string `json:"mac,omitempty"`
}

// Kernel is what the launcher found in a kernel's image.
type Kernel struct {
	// Path and Initrd in the launcher's file system.
	Path   string `json:"path,omitempty"`
	Initrd string `json:"initrd,omitempty"`
	// Error says why it cannot be used.
	Error string `json:"error,omitempty"`
}
