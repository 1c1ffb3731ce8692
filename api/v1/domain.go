package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// DomainSpec is the virtual hardware.
//
// +kubebuilder:validation:XValidation:rule="(has(self.memory) && has(self.memory.guest)) || (has(self.resources) && ((has(self.resources.requests) && 'memory' in self.resources.requests) || (has(self.resources.limits) && 'memory' in self.resources.limits)))",message="no memory: set memory.guest, resources.requests.memory or resources.limits.memory",fieldPath=".memory"
type DomainSpec struct {
	// Resources of the launcher pod. What QEMU needs besides guest memory is
	// added to the memory request.
	// +optional
	Resources ResourceRequirements `json:"resources,omitempty"`
	// CPU topology and model.
	// +optional
	CPU *CPU `json:"cpu,omitempty"`
	// Memory of the guest.
	// +optional
	Memory *Memory `json:"memory,omitempty"`
	// Machine is QEMU's machine type.
	// +optional
	Machine *Machine `json:"machine,omitempty"`
	// Firmware identity.
	// +optional
	Firmware *Firmware `json:"firmware,omitempty"`
	// Clock of the guest.
	// +optional
	Clock *Clock `json:"clock,omitempty"`
	// Features of the platform.
	// +optional
	Features *Features `json:"features,omitempty"`
	// Devices of the guest.
	// +optional
	Devices Devices `json:"devices,omitempty"`
}

// ResourceRequirements of the launcher pod.
type ResourceRequirements struct {
	// +optional
	Requests ResourceList `json:"requests,omitempty"`
	// +optional
	Limits ResourceList `json:"limits,omitempty"`
}

// ResourceList is a list of quantities by resource name. Quantities are bounded:
// the API server keeps 1e-999999999 as it is, and whoever decodes it is busy
// for hours.
//
// +kubebuilder:validation:MaxProperties=8
// +kubebuilder:validation:XValidation:rule="self.all(name, !string(self[name]).lowerAscii().contains('e'))",message="quantities with exponents are refused"
type ResourceList map[corev1.ResourceName]resource.Quantity

// CPU is the guest's topology (QEMU -smp) and model (-cpu). Of cores, sockets
// and threads, the unset ones count as 1; if all are unset, sockets follows
// the CPU request.
type CPU struct {
	// Cores per socket.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=512
	Cores uint32 `json:"cores,omitempty"`
	// Sockets of the machine.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=512
	Sockets uint32 `json:"sockets,omitempty"`
	// Threads per core.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=512
	Threads uint32 `json:"threads,omitempty"`
	// Model is a QEMU CPU model, host-passthrough, or host-model, which means
	// host under KVM and max under TCG. Default: host-model.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._-]*$`
	Model string `json:"model,omitempty"`
}

// Memory of the guest.
type Memory struct {
	// Guest is how much RAM the guest has (QEMU -m). Default: the memory
	// request, else the memory limit.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!string(self).lowerAscii().contains('e')",message="quantities with exponents are refused"
	Guest *resource.Quantity `json:"guest,omitempty"`
}

// Machine is QEMU's machine (-machine).
type Machine struct {
	// Type is q35 (the newest that the node's QEMU has) or a versioned
	// pc-q35-X.Y. Default: q35. In the status: the versioned name.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Type string `json:"type,omitempty"`
}

// Firmware identity, shown to the guest by SMBIOS.
type Firmware struct {
	// UUID of the machine (QEMU -uuid). Default: the object's UID.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$`
	UUID string `json:"uuid,omitempty"`
	// Serial number of the machine (SMBIOS type 1).
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_.+-]*$`
	Serial string `json:"serial,omitempty"`
}

// Clock of the guest.
type Clock struct {
	// UTC: the guest's clock holds UTC (QEMU -rtc base=utc). It is also the default.
	// +optional
	UTC *ClockOffsetUTC `json:"utc,omitempty"`
}

// ClockOffsetUTC means UTC without an offset.
type ClockOffsetUTC struct{}

// Features of the platform.
type Features struct {
	// ACPI tables. Without them the guest sees no power button, and is ended
	// without grace.
	// +optional
	ACPI FeatureState `json:"acpi,omitempty"`
}

// FeatureState turns a feature on or off.
type FeatureState struct {
	// Default: true.
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
}

// Devices of the guest.
//
// +kubebuilder:validation:XValidation:rule="!has(self.tpm)",message="tpm is not supported yet",fieldPath=".tpm"
// +kubebuilder:validation:XValidation:rule="!has(self.watchdog)",message="watchdog is not supported yet",fieldPath=".watchdog"
// +kubebuilder:validation:XValidation:rule="!has(self.gpus)",message="gpus are not supported yet",fieldPath=".gpus"
// +kubebuilder:validation:XValidation:rule="!has(self.hostDevices)",message="hostDevices are not supported yet",fieldPath=".hostDevices"
// +kubebuilder:validation:XValidation:rule="!has(self.filesystems)",message="filesystems are not supported yet",fieldPath=".filesystems"
type Devices struct {
	// Disks in the order in which the guest finds them.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=256
	Disks []Disk `json:"disks,omitempty"`
	// Interfaces in the order in which the guest finds them.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=256
	Interfaces []Interface `json:"interfaces,omitempty"`
	// Rng adds a virtio random number generator fed from /dev/urandom.
	// +optional
	Rng *Rng `json:"rng,omitempty"`
	// AutoattachPodInterface: false means no interface when none is listed.
	// +optional
	AutoattachPodInterface *bool `json:"autoattachPodInterface,omitempty"`
	// AutoattachSerialConsole adds a serial port, whose output is also the
	// pod's log. Default: true.
	// +optional
	AutoattachSerialConsole *bool `json:"autoattachSerialConsole,omitempty"`
	// AutoattachGraphicsDevice adds a VGA card shown over VNC. Default: true.
	// +optional
	AutoattachGraphicsDevice *bool `json:"autoattachGraphicsDevice,omitempty"`

	// TPM is refused: not supported yet.
	// +optional
	TPM *Unsupported `json:"tpm,omitempty"`
	// Watchdog is refused: not supported yet.
	// +optional
	Watchdog *Unsupported `json:"watchdog,omitempty"`
	// GPUs are refused: not supported yet.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	GPUs []Unsupported `json:"gpus,omitempty"`
	// HostDevices are refused: not supported yet.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	HostDevices []Unsupported `json:"hostDevices,omitempty"`
	// Filesystems are refused: not supported yet.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Filesystems []Unsupported `json:"filesystems,omitempty"`
}

// Unsupported stands for a KubeVirt field that is declared only to be refused.
//
// +kubebuilder:pruning:PreserveUnknownFields
type Unsupported struct{}

// Rng is a virtio random number generator.
type Rng struct{}

// DiskBus is how a disk is attached.
type DiskBus string

// Disk buses.
const (
	// DiskBusVirtio is a virtio-blk PCI device.
	DiskBusVirtio DiskBus = "virtio"
	// DiskBusSATA is a drive on the machine's AHCI controller.
	DiskBusSATA DiskBus = "sata"
)

// Disk shows a volume to the guest.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.disk) && has(self.cdrom))",message="a disk is either disk or cdrom, not both"
// +kubebuilder:validation:XValidation:rule="!has(self.lun)",message="lun is not supported yet",fieldPath=".lun"
type Disk struct {
	// Name of the volume it shows.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// BootOrder: the disk with the lowest number is booted first; if any
	// device has one, only such devices are tried.
	// +optional
	// +kubebuilder:validation:Minimum=1
	BootOrder *uint32 `json:"bootOrder,omitempty"`
	// Serial number the guest sees.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_.+-]*$`
	Serial string `json:"serial,omitempty"`
	// Disk: a hard disk. The default.
	// +optional
	Disk *DiskTarget `json:"disk,omitempty"`
	// CDRom: a CD-ROM drive.
	// +optional
	CDRom *CDRomTarget `json:"cdrom,omitempty"`
	// Lun is refused: not supported yet.
	// +optional
	Lun *Unsupported `json:"lun,omitempty"`
}

// DiskTarget is a hard disk.
type DiskTarget struct {
	// Bus is virtio or sata. Default: sata.
	// +optional
	// +kubebuilder:validation:Enum=virtio;sata
	Bus DiskBus `json:"bus,omitempty"`
	// ReadOnly: the guest cannot write. Not possible on sata.
	// +optional
	ReadOnly bool `json:"readonly,omitempty"`
}

// CDRomTarget is a CD-ROM drive.
type CDRomTarget struct {
	// Bus is sata. Default: sata.
	// +optional
	// +kubebuilder:validation:Enum=virtio;sata
	Bus DiskBus `json:"bus,omitempty"`
	// ReadOnly must not be false. Default: true.
	// +optional
	ReadOnly *bool `json:"readonly,omitempty"`
}

// Interface connects the guest to a network. Exactly one binding is set.
//
// +kubebuilder:validation:XValidation:rule="[has(self.masquerade), has(self.bridge), has(self.sriov), has(self.passtBinding), has(self.binding)].filter(b, b).size() == 1",message="exactly one binding must be set (supported: masquerade, bridge)"
// +kubebuilder:validation:XValidation:rule="!has(self.sriov)",message="the sriov binding is not supported yet",fieldPath=".sriov"
// +kubebuilder:validation:XValidation:rule="!has(self.passtBinding)",message="the passt binding is not supported yet; use masquerade",fieldPath=".passtBinding"
// +kubebuilder:validation:XValidation:rule="!has(self.binding)",message="binding plugins are not supported",fieldPath=".binding"
type Interface struct {
	// Name of the network it connects to.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9-_]+$`
	Name string `json:"name"`
	// Model of the card. Default: virtio.
	// +optional
	// +kubebuilder:validation:Enum=virtio;e1000;e1000e;rtl8139
	Model string `json:"model,omitempty"`
	// MacAddress of the guest's interface. Default: made from the object's UID.
	// +optional
	// +kubebuilder:validation:MaxLength=17
	// +kubebuilder:validation:Pattern=`^[0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){5}$`
	MacAddress string `json:"macAddress,omitempty"`
	// Ports that are forwarded from the pod's address to the guest. None
	// listed: all are. Only listed ports are shown in the pod.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Ports []Port `json:"ports,omitempty"`

	// Masquerade: the guest has a private address behind the pod's, with NAT.
	// +optional
	Masquerade *InterfaceMasquerade `json:"masquerade,omitempty"`

	// Bridge: the guest takes the pod's address, by DHCP.
	// +optional
	Bridge *InterfaceBridge `json:"bridge,omitempty"`
	// DHCPOptions are told to the guest by DHCP.
	// +optional
	DHCPOptions *DHCPOptions `json:"dhcpOptions,omitempty"`
	// SRIOV is refused: not supported yet.
	// +optional
	SRIOV *Unsupported `json:"sriov,omitempty"`
	// PasstBinding is refused: not supported yet.
	// +optional
	PasstBinding *Unsupported `json:"passtBinding,omitempty"`
	// Binding is refused: binding plugins are libvirt hooks.
	// +optional
	Binding *Unsupported `json:"binding,omitempty"`
}

// InterfaceBridge is the binding in which the guest takes the pod's place.
type InterfaceBridge struct{}

// DHCPOptions are further DHCP options.
type DHCPOptions struct {
	// BootFileName is option 67.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	BootFileName string `json:"bootFileName,omitempty"`
	// TFTPServerName is option 66.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	TFTPServerName string `json:"tftpServerName,omitempty"`
	// NTPServers is option 42.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=15
	NTPServers []string `json:"ntpServers,omitempty"`
	// PrivateOptions are options 224 to 254.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=31
	PrivateOptions []DHCPPrivateOptions `json:"privateOptions,omitempty"`
}

// DHCPPrivateOptions is an option of the site's own.
type DHCPPrivateOptions struct {
	// Option is 224 to 254.
	Option int `json:"option"`
	// Value is told as it is.
	// +kubebuilder:validation:MaxLength=255
	Value string `json:"value"`
}

// InterfaceMasquerade is the NAT binding.
type InterfaceMasquerade struct{}

// Port of the guest.
type Port struct {
	// +optional
	// +kubebuilder:validation:MaxLength=15
	Name string `json:"name,omitempty"`
	// Protocol is TCP or UDP. Default: TCP.
	// +optional
	// +kubebuilder:validation:Enum=TCP;UDP
	Protocol string `json:"protocol,omitempty"`
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

// Network an interface connects to.
type Network struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// Pod is the pod's own network.
	// +optional
	Pod *PodNetwork `json:"pod,omitempty"`
}

// PodNetwork is the pod's own network.
type PodNetwork struct {
	// VMNetworkCIDR is the guest's private network with masquerade; the
	// gateway is its first address, the guest its second. Default: 10.0.2.0/24.
	// +optional
	// +kubebuilder:validation:MaxLength=18
	VMNetworkCIDR string `json:"vmNetworkCIDR,omitempty"`
}

// Volume is where a disk's content comes from. Exactly one source is set.
//
// +kubebuilder:validation:XValidation:rule="has(self.containerDisk) != has(self.cloudInitNoCloud)",message="exactly one volume source must be set (supported: containerDisk, cloudInitNoCloud)"
type Volume struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// ContainerDisk is a disk image in a container image. Writes go to an
	// overlay that ends with the VMI.
	// +optional
	ContainerDisk *ContainerDiskSource `json:"containerDisk,omitempty"`
	// CloudInitNoCloud is a cloud-init NoCloud seed.
	// +optional
	CloudInitNoCloud *CloudInitNoCloudSource `json:"cloudInitNoCloud,omitempty"`
}

// ContainerDiskSource is a disk image (qcow2 or raw) in a container image.
type ContainerDiskSource struct {
	// Image is the container image's reference.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Image string `json:"image"`
	// Path of the disk in the container image. Default: the only file in /disk.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Path string `json:"path,omitempty"`
	// ImagePullPolicy as for containers. Default: Always for the tag latest
	// or none, else IfNotPresent.
	// +optional
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// ImagePullSecret is a Secret of the namespace with registry credentials.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ImagePullSecret string `json:"imagePullSecret,omitempty"`
}

// CloudInitNoCloudSource is a cloud-init NoCloud seed; user and network data
// may each be given as plain text or in base64, not both. At most 2048 bytes each.
type CloudInitNoCloudSource struct {
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	UserData string `json:"userData,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=2736
	UserDataBase64 string `json:"userDataBase64,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	NetworkData string `json:"networkData,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=2736
	NetworkDataBase64 string `json:"networkDataBase64,omitempty"`
}
