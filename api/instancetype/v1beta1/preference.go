package v1beta1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// VirtualMachinePreference holds the settings that a kind of guest prefers. It fills in what
// the template of a VirtualMachine that names it leaves out, and never changes what is set
// there.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=virtualmachinepreferences,shortName=vmpref;vmprefs;vmp;vmps,categories=all
// +kubebuilder:metadata:labels="kubevirt.io="
type VirtualMachinePreference struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VirtualMachinePreferenceSpec `json:"spec"`
}

// VirtualMachinePreferenceList is a list of VirtualMachinePreferences.
//
// +kubebuilder:object:root=true
type VirtualMachinePreferenceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachinePreference `json:"items"`
}

// VirtualMachineClusterPreference is a VirtualMachinePreference for all
// namespaces.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=virtualmachineclusterpreferences,scope=Cluster,shortName=vmcp;vmcps
// +kubebuilder:metadata:labels="kubevirt.io="
type VirtualMachineClusterPreference struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VirtualMachinePreferenceSpec `json:"spec"`
}

// VirtualMachineClusterPreferenceList is a list of VirtualMachineClusterPreferences.
//
// +kubebuilder:object:root=true
type VirtualMachineClusterPreferenceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachineClusterPreference `json:"items"`
}

// VirtualMachinePreferenceSpec holds the settings that a kind of guest prefers.
type VirtualMachinePreferenceSpec struct {
	// Clock of the guest.
	// +optional
	Clock *ClockPreferences `json:"clock,omitempty"`
	// CPU topology.
	// +optional
	CPU *CPUPreferences `json:"cpu,omitempty"`
	// Devices of the guest.
	// +optional
	Devices *DevicePreferences `json:"devices,omitempty"`
	// Features of the platform.
	// +optional
	Features *FeaturePreferences `json:"features,omitempty"`
	// Firmware that the machine starts with.
	// +optional
	Firmware *FirmwarePreferences `json:"firmware,omitempty"`
	// Machine is QEMU's machine type.
	// +optional
	Machine *MachinePreferences `json:"machine,omitempty"`
	// Volumes has the storage class of the claims that a virtual machine's templates make.
	// +optional
	Volumes *VolumePreferences `json:"volumes,omitempty"`
	// PreferredSubdomain of the guest.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PreferredSubdomain string `json:"preferredSubdomain,omitempty"`
	// PreferredTerminationGracePeriodSeconds is how long the guest may take to shut down. Unit:
	// seconds.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	PreferredTerminationGracePeriodSeconds *int64 `json:"preferredTerminationGracePeriodSeconds,omitempty"`
	// PreferredArchitecture of the guest.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	PreferredArchitecture string `json:"preferredArchitecture,omitempty"`
	// PreferredLaunchSecurity is refused: not supported yet.
	// +optional
	PreferredLaunchSecurity *v1.Unsupported `json:"preferredLaunchSecurity,omitempty"`
	// Requirements of the machine, without which it is not started.
	// +optional
	Requirements *PreferenceRequirements `json:"requirements,omitempty"`
	// Annotations of the VirtualMachineInstance.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Annotations map[string]string `json:"annotations,omitempty"`
	// PreferSpreadSocketToCoreRatio is the number of cores per socket with the topology spread,
	// unless cpu.spreadOptions.ratio is set. Default: 2.
	// +optional
	// +kubebuilder:validation:Maximum=255
	PreferSpreadSocketToCoreRatio uint32 `json:"preferSpreadSocketToCoreRatio,omitempty"`
}

// VolumePreferences are of the volumes.
type VolumePreferences struct {
	// PreferredStorageClassName is the storage class of the claims of spec.dataVolumeTemplates that
	// name none.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PreferredStorageClassName string `json:"preferredStorageClassName,omitempty"`
}

// ClockPreferences are of the guest's clock.
type ClockPreferences struct {
	// PreferredClockOffset is used as a whole if the template sets none.
	// +optional
	PreferredClockOffset *ClockOffset `json:"preferredClockOffset,omitempty"`
	// PreferredTimer is used as a whole if the template sets no timer.
	// +optional
	PreferredTimer *v1.Timer `json:"preferredTimer,omitempty"`
}

// ClockOffset is the offset of the guest's clock.
type ClockOffset struct {
	// UTC is clock.utc.
	// +optional
	UTC *v1.ClockOffsetUTC `json:"utc,omitempty"`
	// Timezone is clock.timezone.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Timezone string `json:"timezone,omitempty"`
}

// CPUPreferences are of the CPUs.
type CPUPreferences struct {
	// PreferredCPUTopology is how an instancetype's CPUs are laid out: as sockets, cores,
	// threads, spread over several of these, or any (sockets). The names that begin with
	// "prefer" are older ones. Default: sockets.
	// +optional
	// +kubebuilder:validation:Enum=sockets;cores;threads;spread;any;preferSockets;preferCores;preferThreads;preferSpread;preferAny
	PreferredCPUTopology string `json:"preferredCPUTopology,omitempty"`
	// SpreadOptions are of the topology spread.
	// +optional
	SpreadOptions *SpreadOptions `json:"spreadOptions,omitempty"`
	// PreferredCPUFeatures are cpu.features, those that the template does not name.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	PreferredCPUFeatures []v1.CPUFeature `json:"preferredCPUFeatures,omitempty"`
}

// SpreadOptions say how CPUs are spread.
type SpreadOptions struct {
	// Across is SocketsCores (ratio cores per socket), CoresThreads (ratio
	// threads per core) or SocketsCoresThreads (ratio cores of two threads per
	// socket). Default: SocketsCores.
	// +optional
	// +kubebuilder:validation:Enum=SocketsCores;CoresThreads;SocketsCoresThreads
	Across string `json:"across,omitempty"`
	// Ratio that across names. Default: 2.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=255
	Ratio uint32 `json:"ratio,omitempty"`
}

// DevicePreferences are of the devices.
type DevicePreferences struct {
	// PreferredAutoattachGraphicsDevice is devices.autoattachGraphicsDevice.
	// +optional
	PreferredAutoattachGraphicsDevice *bool `json:"preferredAutoattachGraphicsDevice,omitempty"`
	// PreferredAutoattachMemBalloon is devices.autoattachMemBalloon.
	// +optional
	PreferredAutoattachMemBalloon *bool `json:"preferredAutoattachMemBalloon,omitempty"`
	// PreferredAutoattachPodInterface is devices.autoattachPodInterface.
	// +optional
	PreferredAutoattachPodInterface *bool `json:"preferredAutoattachPodInterface,omitempty"`
	// PreferredAutoattachSerialConsole is devices.autoattachSerialConsole.
	// +optional
	PreferredAutoattachSerialConsole *bool `json:"preferredAutoattachSerialConsole,omitempty"`
	// PreferredAutoattachInputDevice is devices.autoattachInputDevice.
	// +optional
	PreferredAutoattachInputDevice *bool `json:"preferredAutoattachInputDevice,omitempty"`
	// PreferredDisableHotplug has no effect, as devices.disableHotplug.
	// +optional
	PreferredDisableHotplug *bool `json:"preferredDisableHotplug,omitempty"`
	// PreferredInputBus is the bus of inputs that name none.
	// +optional
	// +kubebuilder:validation:Enum=usb;virtio
	PreferredInputBus string `json:"preferredInputBus,omitempty"`
	// PreferredInputType is the type of inputs that name none.
	// +optional
	// +kubebuilder:validation:Enum=tablet
	PreferredInputType string `json:"preferredInputType,omitempty"`
	// PreferredDiskBus is the bus of disks that name none.
	// +optional
	// +kubebuilder:validation:Enum=virtio;sata;scsi;usb
	PreferredDiskBus v1.DiskBus `json:"preferredDiskBus,omitempty"`
	// PreferredDiskDedicatedIoThread is dedicatedIOThread of disks on bus virtio that do not say.
	// +optional
	PreferredDiskDedicatedIoThread *bool `json:"preferredDiskDedicatedIoThread,omitempty"`
	// PreferredDiskCache is the cache mode of hard disks that name none.
	// +optional
	// +kubebuilder:validation:Enum="";none;writethrough;writeback
	PreferredDiskCache v1.DriverCache `json:"preferredDiskCache,omitempty"`
	// PreferredDiskIO is the kind of I/O of hard disks that name none.
	// +optional
	// +kubebuilder:validation:Enum="";native;threads;io_uring
	PreferredDiskIO v1.DriverIO `json:"preferredDiskIO,omitempty"`
	// PreferredDiskBlockSize is the block size of hard disks that name none.
	// +optional
	PreferredDiskBlockSize *v1.BlockSize `json:"preferredDiskBlockSize,omitempty"`
	// PreferredCdromBus is the bus of CD-ROM drives that name none.
	// +optional
	// +kubebuilder:validation:Enum=sata;scsi;usb
	PreferredCdromBus v1.DiskBus `json:"preferredCdromBus,omitempty"`
	// PreferredInterfaceModel is the model of interfaces that name none.
	// +optional
	// +kubebuilder:validation:Enum=virtio;e1000;e1000e;rtl8139
	PreferredInterfaceModel string `json:"preferredInterfaceModel,omitempty"`
	// PreferredInterfaceMasquerade: an interface of the pod network without a
	// binding gets masquerade.
	// +optional
	PreferredInterfaceMasquerade *v1.InterfaceMasquerade `json:"preferredInterfaceMasquerade,omitempty"`
	// PreferredRng adds a random number generator.
	// +optional
	PreferredRng *v1.Rng `json:"preferredRng,omitempty"`
	// PreferredTPM is devices.tpm.
	// +optional
	PreferredTPM *v1.TPMDevice `json:"preferredTPM,omitempty"`
	// PreferredBlockMultiQueue is devices.blockMultiQueue.
	// +optional
	PreferredBlockMultiQueue *bool `json:"preferredBlockMultiQueue,omitempty"`
	// PreferredNetworkInterfaceMultiQueue is devices.networkInterfaceMultiqueue.
	// +optional
	PreferredNetworkInterfaceMultiQueue *bool `json:"preferredNetworkInterfaceMultiQueue,omitempty"`
	// PreferredUseVirtioTransitional is devices.useVirtioTransitional.
	// +optional
	PreferredUseVirtioTransitional *bool `json:"preferredUseVirtioTransitional,omitempty"`
	// PreferredVideoType is the graphics card's type.
	// +optional
	// +kubebuilder:validation:Enum=vga;virtio;bochs;ramfb
	PreferredVideoType string `json:"preferredVideoType,omitempty"`

	// PreferredLunBus is the bus of LUNs that name none.
	// +optional
	// +kubebuilder:validation:Enum=virtio;sata;scsi
	PreferredLunBus v1.DiskBus `json:"preferredLunBus,omitempty"`
	// PreferredSoundModel is the model of a sound card that names none.
	// +optional
	// +kubebuilder:validation:Enum="";ich9;ac97
	PreferredSoundModel string `json:"preferredSoundModel,omitempty"`
	// PreferredVirtualGPUOptions has no effect: there are no GPUs.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	PreferredVirtualGPUOptions *Ineffective `json:"preferredVirtualGPUOptions,omitempty"`

	// PreferredPanicDeviceModel is the model of panic devices that name none.
	// +optional
	// +kubebuilder:validation:Enum=hyperv;isa;pvpanic
	PreferredPanicDeviceModel *v1.PanicDeviceModel `json:"preferredPanicDeviceModel,omitempty"`
}

// Ineffective holds options of devices that Kubeqemu does not have.
type Ineffective struct{}

// FeaturePreferences are of the platform.
type FeaturePreferences struct {
	// PreferredAcpi is features.acpi.
	// +optional
	PreferredAcpi *v1.FeatureState `json:"preferredAcpi,omitempty"`
	// PreferredApic is features.apic.
	// +optional
	PreferredApic *v1.FeatureAPIC `json:"preferredApic,omitempty"`
	// PreferredSmm is features.smm.
	// +optional
	PreferredSmm *v1.FeatureState `json:"preferredSmm,omitempty"`
	// PreferredHyperv is features.hyperv, each feature by itself.
	// +optional
	PreferredHyperv *v1.FeatureHyperv `json:"preferredHyperv,omitempty"`
	// PreferredKvm is features.kvm.
	// +optional
	PreferredKvm *v1.FeatureKVM `json:"preferredKvm,omitempty"`
	// PreferredPvspinlock is features.pvspinlock.
	// +optional
	PreferredPvspinlock *v1.FeatureState `json:"preferredPvspinlock,omitempty"`
}

// FirmwarePreferences are of the firmware.
type FirmwarePreferences struct {
	// PreferredUseBios is SeaBIOS, also the default.
	// +optional
	PreferredUseBios *bool `json:"preferredUseBios,omitempty"`
	// PreferredUseBiosSerial lets SeaBIOS write to the serial port.
	// +optional
	PreferredUseBiosSerial *bool `json:"preferredUseBiosSerial,omitempty"`
	// PreferredEfi is firmware.bootloader.efi.
	// +optional
	PreferredEfi *v1.EFI `json:"preferredEfi,omitempty"`
	// PreferredUseEfi is UEFI. Deprecated: preferredEfi takes its place, and outweighs it.
	// +optional
	PreferredUseEfi *bool `json:"preferredUseEfi,omitempty"`
	// PreferredUseSecureBoot is firmware.bootloader.efi.secureBoot, where the machine has UEFI.
	// Deprecated: preferredEfi takes its place, and outweighs it.
	// +optional
	PreferredUseSecureBoot *bool `json:"preferredUseSecureBoot,omitempty"`
}

// MachinePreferences are of the machine.
type MachinePreferences struct {
	// PreferredMachineType is domain.machine.type.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^(q35|pc-q35-[0-9]+\.[0-9]+|virt|virt-[0-9]+\.[0-9]+)?$`
	PreferredMachineType string `json:"preferredMachineType,omitempty"`
}

// PreferenceRequirements are what the machine must have at least.
type PreferenceRequirements struct {
	// CPU is how many CPUs the guest must have.
	// +optional
	CPU *CPUPreferenceRequirement `json:"cpu,omitempty"`
	// Memory is how much the guest must have.
	// +optional
	Memory *MemoryPreferenceRequirement `json:"memory,omitempty"`
	// Architecture that the guest must have.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	Architecture string `json:"architecture,omitempty"`
}

// CPUPreferenceRequirement is a number of CPUs.
type CPUPreferenceRequirement struct {
	// Guest is the least number of the guest's CPUs.
	Guest uint32 `json:"guest"`
}

// MemoryPreferenceRequirement is an amount of memory.
type MemoryPreferenceRequirement struct {
	// Guest is the least memory of the guest. Exponents are refused.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^[0-9.]{1,20}([KMGTPE]i?|[numk])?$`
	Guest resource.Quantity `json:"guest"`
}
