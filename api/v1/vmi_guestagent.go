package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// These types hold what QEMU's guest agent reports of a guest, in KubeVirt's form. The guest
// controls what is reported.

// VirtualMachineInstanceGuestOSInfo is the guest's operating system, as its
// guest agent says.
type VirtualMachineInstanceGuestOSInfo struct {
	// Name of the operating system, such as "Debian GNU/Linux".
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name,omitempty"`
	// KernelRelease is the kernel's release, as uname -r has it.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	KernelRelease string `json:"kernelRelease,omitempty"`
	// Version of the operating system, for people, such as "12 (bookworm)".
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Version string `json:"version,omitempty"`
	// PrettyName is name and version, for people.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	PrettyName string `json:"prettyName,omitempty"`
	// VersionID is the version for programs, such as "12".
	// +optional
	// +kubebuilder:validation:MaxLength=256
	VersionID string `json:"versionId,omitempty"`
	// KernelVersion is the kernel's version, as uname -v has it.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	KernelVersion string `json:"kernelVersion,omitempty"`
	// Machine is the hardware's name, as uname -m has it.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Machine string `json:"machine,omitempty"`
	// ID is the operating system's name for programs, such as "debian".
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ID string `json:"id,omitempty"`
}

// FSFrozen is VirtualMachineInstanceStatus.FSFreezeStatus while the guest's file
// systems are frozen.
const FSFrozen = "frozen"

// VirtualMachineInstanceGuestAgentInfo answers virtualmachineinstances/guestosinfo.
type VirtualMachineInstanceGuestAgentInfo struct {
	metav1.TypeMeta `json:",inline"`
	// GAVersion is the guest agent's version.
	GAVersion string `json:"guestAgentVersion,omitempty"`
	// SupportedCommands are the commands that the guest agent knows.
	SupportedCommands []GuestAgentCommandInfo `json:"supportedCommands,omitempty"`
	// Hostname is the guest's.
	Hostname string `json:"hostname,omitempty"`
	// OS is the guest's operating system.
	OS VirtualMachineInstanceGuestOSInfo `json:"os,omitzero"`
	// Timezone is the guest's.
	Timezone string `json:"timezone,omitempty"`
	// UserList are the users who are logged in.
	UserList []VirtualMachineInstanceGuestOSUser `json:"userList,omitempty"`
	// FSInfo are the mounted file systems.
	FSInfo VirtualMachineInstanceFileSystemInfo `json:"fsInfo,omitzero"`
	// FSFreezeStatus is "frozen" while the guest's file systems are.
	FSFreezeStatus string `json:"fsFreezeStatus,omitempty"`
}

// GuestAgentCommandInfo is a command of the guest agent.
type GuestAgentCommandInfo struct {
	Name string `json:"name"`
	// Enabled says whether the guest permits the command.
	Enabled bool `json:"enabled,omitempty"`
}

// VirtualMachineInstanceGuestOSUserList answers virtualmachineinstances/userlist.
type VirtualMachineInstanceGuestOSUserList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	// Items are the users that are logged in.
	Items []VirtualMachineInstanceGuestOSUser `json:"items"`
}

// VirtualMachineInstanceGuestOSUser is a user who is logged in.
type VirtualMachineInstanceGuestOSUser struct {
	UserName string `json:"userName"`
	// Domain is a Windows user's.
	Domain string `json:"domain,omitempty"`
	// LoginTime is in seconds since 1970.
	LoginTime float64 `json:"loginTime,omitempty"`
}

// VirtualMachineInstanceFileSystemList answers virtualmachineinstances/filesystemlist.
type VirtualMachineInstanceFileSystemList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	// Items are the file systems that are mounted.
	Items []VirtualMachineInstanceFileSystem `json:"items"`
}

// VirtualMachineInstanceFileSystemInfo holds the mounted file systems.
type VirtualMachineInstanceFileSystemInfo struct {
	Filesystems []VirtualMachineInstanceFileSystem `json:"disks"`
}

// VirtualMachineInstanceFileSystem is a mounted file system.
type VirtualMachineInstanceFileSystem struct {
	// DiskName is the name of the device in the guest.
	DiskName       string `json:"diskName"`
	MountPoint     string `json:"mountPoint"`
	FileSystemType string `json:"fileSystemType"`
	UsedBytes      int64  `json:"usedBytes"`
	TotalBytes     int64  `json:"totalBytes"`
	// Disk are the disks below the file system.
	Disk []VirtualMachineInstanceFileSystemDisk `json:"disk,omitempty"`
}

// VirtualMachineInstanceFileSystemDisk is a disk below a file system.
type VirtualMachineInstanceFileSystemDisk struct {
	Serial  string `json:"serial,omitempty"`
	BusType string `json:"busType"`
}

// FreezeUnfreezeTimeout is sent to virtualmachineinstances/freeze.
type FreezeUnfreezeTimeout struct {
	// UnfreezeTimeout is the time, such as 30s, after which the guest's file systems are
	// thawed, unless somebody thaws them before. 0s means never. Default: 5m.
	UnfreezeTimeout *metav1.Duration `json:"unfreezeTimeout"`
}
