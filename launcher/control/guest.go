package control

// The types in this file hold what the guest agent says of its guest. Their JSON
// is that of KubeVirt's subresources guestosinfo, userlist and filesystemlist.

// AgentInfo describes the guest agent.
type AgentInfo struct {
	Version  string         `json:"guestAgentVersion,omitempty"`
	Commands []AgentCommand `json:"supportedCommands,omitempty"`
}

// AgentCommand is a command of the guest agent.
type AgentCommand struct {
	Name    string `json:"name"`
	Enabled bool   `json:"enabled,omitempty"`
}

// GuestOS describes the guest's operating system.
type GuestOS struct {
	Name          string `json:"name,omitempty"`
	KernelRelease string `json:"kernelRelease,omitempty"`
	Version       string `json:"version,omitempty"`
	PrettyName    string `json:"prettyName,omitempty"`
	VersionID     string `json:"versionId,omitempty"`
	KernelVersion string `json:"kernelVersion,omitempty"`
	Machine       string `json:"machine,omitempty"`
	ID            string `json:"id,omitempty"`
}

// GuestInterface is a network interface that the guest sees.
type GuestInterface struct {
	Name string `json:"name"`
	MAC  string `json:"mac,omitempty"`
	// Addresses are the addresses that others may reach, without their prefix.
	Addresses []string `json:"addresses,omitempty"`
}

// GuestUser is a user who is logged in.
type GuestUser struct {
	Name   string `json:"userName"`
	Domain string `json:"domain,omitempty"`
	// LoginTime is in seconds since 1970.
	LoginTime float64 `json:"loginTime,omitempty"`
}

// GuestFileSystem is a file system that the guest has mounted.
type GuestFileSystem struct {
	Name       string      `json:"diskName"`
	MountPoint string      `json:"mountPoint"`
	Type       string      `json:"fileSystemType"`
	UsedBytes  int64       `json:"usedBytes"`
	TotalBytes int64       `json:"totalBytes"`
	Disks      []GuestDisk `json:"disk,omitempty"`
}

// GuestDisk is a disk below a GuestFileSystem.
type GuestDisk struct {
	Serial  string `json:"serial,omitempty"`
	BusType string `json:"busType"`
}

// GuestInfo is the answer to CommandGuestInfo.
type GuestInfo struct {
	AgentInfo
	Hostname     string      `json:"hostname,omitempty"`
	OS           GuestOS     `json:"os,omitzero"`
	Timezone     string      `json:"timezone,omitempty"`
	Users        []GuestUser `json:"userList,omitempty"`
	FSInfo       GuestFSInfo `json:"fsInfo,omitzero"`
	FreezeStatus string      `json:"fsFreezeStatus,omitempty"`
}

// GuestFSInfo is the list of file systems inside GuestInfo.
type GuestFSInfo struct {
	FileSystems []GuestFileSystem `json:"disks"`
}

// GuestUsers is the answer to CommandUsers.
type GuestUsers struct {
	Items []GuestUser `json:"items"`
}

// GuestFileSystems is the answer to CommandFileSystems.
type GuestFileSystems struct {
	Items []GuestFileSystem `json:"items"`
}
