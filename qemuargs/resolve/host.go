// Package resolve decides everything about a VMI's QEMU: VMI and host facts in, Machine out. It
// is pure: Host holds all that it knows of the node and the pod.
package resolve

import "github.com/kubeqemu/kubeqemu/qemuargs"

// Host holds the facts of the node and the pod. It can be written as YAML, for tests and for
// "qemuargs render".
type Host struct {
	// Accelerator that guests of this node get.
	Accelerator qemuargs.Accelerator `json:"accelerator"`
	// QEMUVersion of the launcher's QEMU, such as 7.2.22.
	QEMUVersion string `json:"qemuVersion"`
	// ContainerDisks by volume name.
	ContainerDisks map[string]qemuargs.ImageFacts `json:"containerDisks,omitempty"`
	// Claims by volume name: PersistentVolumeClaims, and files of the node.
	Claims map[string]qemuargs.VolumeFacts `json:"claims,omitempty"`
	// ConfigVolumes by volume name: those of which the launcher makes disks.
	ConfigVolumes map[string]qemuargs.ConfigFacts `json:"configVolumes,omitempty"`
	// OverlayDirect: O_DIRECT works where overlays are made.
	OverlayDirect bool `json:"overlayDirect,omitempty"`
	// OverlayBlocks are the sizes of blocks where overlays are made.
	OverlayBlocks *qemuargs.BlockSizes `json:"overlayBlocks,omitempty"`
	// AIO says which kinds of I/O QEMU can use there.
	AIO qemuargs.AIOFacts `json:"aio,omitzero"`
	// Kernel is what the launcher found out about the kernel that is booted directly.
	Kernel *qemuargs.KernelFacts `json:"kernel,omitempty"`
	// VhostNet: the node's kernel can move guests' packets (vhost-net), and the launcher can
	// take the files for it.
	VhostNet bool `json:"vhostNet,omitempty"`
	// NoHyperV: the node's kernel has none of Hyper-V's interfaces.
	NoHyperV bool `json:"noHyperV,omitempty"`
	// HostModel are the flags that make QEMU's CPU model base all that the accelerator offers (package hostcpu). Without
	// them the guest's CPU is QEMU's model host or max, which means something else on other nodes.
	HostModel []string `json:"hostModel,omitempty"`
	// TSCFrequency is what all nodes can give a guest that needs a TSC of one frequency, in Hz; 0 for none.
	TSCFrequency int64 `json:"tscFrequency,omitempty"`
	// SMBIOS holds the cluster's texts, of which an empty one is KubeVirt's.
	SMBIOS qemuargs.SMBIOS `json:"smbios,omitzero"`
	// NoFreePageReporting: the cluster's guests do not give back the pages that they have freed.
	NoFreePageReporting bool `json:"noFreePageReporting,omitempty"`
	// FirmwareDir is the folder with OVMF's files, where that is not the one of package layout.
	FirmwareDir string `json:"firmwareDir,omitempty"`
	// Now is the moment of the start, in seconds since 1970.
	Now int64 `json:"now,omitempty"`
	// ZoneOffset is what the VMI's time zone is ahead of UTC then, in seconds. It is unset for a zone
	// that is none.
	ZoneOffset *int64 `json:"zoneOffset,omitempty"`
	// CPUNodes are the host's NUMA nodes of the CPUs that the pod has to itself, in the order in which the guest's CPUs
	// get them.
	CPUNodes []int `json:"cpuNodes,omitempty"`
	// NICs by interface name.
	NICs map[string]NIC `json:"nics,omitempty"`
	// Root is the folder that stands for the pod's root, where there is no pod: the paths of
	// package layout are below it. It is empty for a pod.
	Root string `json:"root,omitempty"`
}

// NIC is what is known of the network an interface connects to.
type NIC struct {
	// MTU of the pod's link, which the guest gets too.
	MTU int `json:"mtu"`
	// MAC of the pod's link, which the guest takes over with the bridge binding.
	MAC string `json:"mac,omitempty"`
	// User is the network inside QEMU that stands for the pod's, where there is no pod.
	User *qemuargs.UserNetwork `json:"user,omitempty"`
	// Device is the PCI address, on the node, of the card that a guest with the binding sriov gets.
	Device string `json:"device,omitempty"`
	// RefreshLink: the interface's plugin says so (link-refresh).
	RefreshLink bool `json:"refreshLink,omitempty"`
}
