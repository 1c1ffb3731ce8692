package v1

import (
	"fmt"

	"k8s.io/utils/ptr"
)

// Devices of the guest.
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
	// Filesystems share files of volumes with the guest, by virtiofs.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Filesystems []Filesystem `json:"filesystems,omitempty"`
	// Inputs are pointing devices.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=15
	Inputs []Input `json:"inputs,omitempty"`
	// Watchdog resets or ends a guest that no longer feeds it.
	// +optional
	Watchdog *Watchdog `json:"watchdog,omitempty"`
	// Rng adds a virtio random number generator fed from /dev/urandom.
	// +optional
	Rng *Rng `json:"rng,omitempty"`
	// TPM adds a TPM 2.0.
	// +optional
	TPM *TPMDevice `json:"tpm,omitempty"`
	// Video is the graphics card. Refused if autoattachGraphicsDevice is false.
	// +optional
	Video *VideoDevice `json:"video,omitempty"`
	// AutoattachPodInterface adds an interface if neither interfaces nor networks are listed.
	// Default: true.
	// +optional
	AutoattachPodInterface *bool `json:"autoattachPodInterface,omitempty"`
	// AutoattachSerialConsole adds a serial port, whose output also goes to the pod's log.
	// Default: true.
	// +optional
	AutoattachSerialConsole *bool `json:"autoattachSerialConsole,omitempty"`
	// LogSerialConsole: false keeps the serial port's output out of the pod's
	// log. Default: true.
	// +optional
	LogSerialConsole *bool `json:"logSerialConsole,omitempty"`
	// AutoattachGraphicsDevice adds a graphics card shown over VNC. Default: true.
	// +optional
	AutoattachGraphicsDevice *bool `json:"autoattachGraphicsDevice,omitempty"`
	// AutoattachMemBalloon adds a virtio memory balloon, by which the guest gives back freed
	// pages. Default: true.
	// +optional
	AutoattachMemBalloon *bool `json:"autoattachMemBalloon,omitempty"`
	// AutoattachInputDevice adds a USB tablet if inputs is empty. Default: false.
	// +optional
	AutoattachInputDevice *bool `json:"autoattachInputDevice,omitempty"`
	// NetworkInterfaceMultiQueue gives virtio interfaces one queue per vCPU, at
	// most 32. Default: false.
	// +optional
	NetworkInterfaceMultiQueue *bool `json:"networkInterfaceMultiqueue,omitempty"`
	// BlockMultiQueue has no effect: virtio disks always have one queue per vCPU, as QEMU gives
	// them.
	// +optional
	BlockMultiQueue *bool `json:"blockMultiQueue,omitempty"`
	// DisableHotplug has no effect: only free PCI slots are kept for hotplug.
	// +optional
	DisableHotplug *bool `json:"disableHotplug,omitempty"`
	// UseVirtioTransitional makes virtio devices that guests without virtio 1 know too. They are conventional PCI devices on
	// the root bus: twelve interfaces and disks at most. Default: false.
	// +optional
	UseVirtioTransitional *bool `json:"useVirtioTransitional,omitempty"`

	// AutoattachVSOCK is refused: not supported yet: virt-handler gives out no CIDs yet, which are the whole node's.
	// +optional
	AutoattachVSOCK UnsupportedBool `json:"autoattachVSOCK,omitempty" later:"virt-handler gives out no CIDs yet, which are the whole node's"`
	// GPUs are refused: not supported yet: no device of the node is offered to pods yet.
	// +optional
	GPUs UnsupportedList `json:"gpus,omitempty" later:"no device of the node is offered to pods yet"`
	// HostDevices are refused: not supported yet: no device of the node is offered to pods yet.
	// +optional
	HostDevices UnsupportedList `json:"hostDevices,omitempty" later:"no device of the node is offered to pods yet"`
	// PanicDevices tell QEMU that the guest's kernel has panicked. The VirtualMachineInstance then fails with the reason
	// GuestPanicked. Each model once.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=3
	PanicDevices []PanicDevice `json:"panicDevices,omitempty"`
	// Sound is a sound card. Nobody hears it: VNC has no sound here.
	// +optional
	Sound *SoundDevice `json:"sound,omitempty"`
	// ClientPassthrough is refused: not supported yet: the subresource usbredir is not there yet.
	// +optional
	ClientPassthrough *Unsupported `json:"clientPassthrough,omitempty" later:"the subresource usbredir is not there yet"`
	// DownwardMetrics is refused: not supported yet: the node's metrics are not gathered yet.
	// +optional
	DownwardMetrics *Unsupported `json:"downwardMetrics,omitempty" later:"the node's metrics are not gathered yet"`
}

// Rng is a virtio random number generator.
type Rng struct{}

// VideoDevice is the graphics card.
type VideoDevice struct {
	// Type is vga (QEMU VGA, 16 MiB), virtio (virtio-vga), bochs
	// (bochs-display) or ramfb. Default: vga.
	// +optional
	// +kubebuilder:validation:Enum=vga;virtio;bochs;ramfb
	Type string `json:"type,omitempty"`
}

// Input is a pointing device.
type Input struct {
	// Name of the device.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	Name string `json:"name"`
	// Type is tablet.
	// +kubebuilder:validation:Enum=tablet
	Type string `json:"type"`
	// Bus is usb or virtio. Default: usb.
	// +optional
	// +kubebuilder:validation:Enum=usb;virtio
	Bus string `json:"bus,omitempty"`
}

// Watchdog is a watchdog device.
type Watchdog struct {
	// Name of the device.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	Name string `json:"name"`
	// I6300ESB is an Intel 6300ESB, a PCI device. It is also the default.
	// +optional
	I6300ESB *I6300ESBWatchdog `json:"i6300esb,omitempty"`

	// Diag288 is never supported: it is a device of s390x.
	// +optional
	Diag288 *Never `json:"diag288,omitempty" never:"it is a device of s390x"`
}

// I6300ESBWatchdog is an Intel 6300ESB.
type I6300ESBWatchdog struct {
	// Action when the guest stops feeding it: reset, poweroff, or shutdown
	// (the ACPI power button). Default: reset.
	// +optional
	// +kubebuilder:validation:Enum=reset;poweroff;shutdown
	Action string `json:"action,omitempty"`
}

// stay returns why a device keeps the guest on its node: a reason and a sentence. Both are empty if none does.
func (d *Devices) stay() (reason, message string) {
	for i, nic := range d.Interfaces {
		if nic.SRIOV != nil {
			return ReasonHostDeviceNotMigratable, fmt.Sprintf("spec.domain.devices.interfaces[%d], %s, is a network card of "+
				"the node (sriov), and stays there; a guest without it can move", i, nic.Name)
		}
	}
	return "", ""
}

func defaultDevices(d *Devices) {
	if d.Watchdog != nil {
		if d.Watchdog.I6300ESB == nil {
			d.Watchdog.I6300ESB = &I6300ESBWatchdog{}
		}
		if d.Watchdog.I6300ESB.Action == "" {
			d.Watchdog.I6300ESB.Action = "reset"
		}
	}
	for i := range d.Inputs {
		if d.Inputs[i].Type == "" {
			d.Inputs[i].Type = "tablet"
		}
		if d.Inputs[i].Bus == "" {
			d.Inputs[i].Bus = "usb"
		}
	}
	if d.Video != nil && d.Video.Type == "" {
		d.Video.Type = "vga"
	}
	if d.Sound != nil && d.Sound.Model == "" {
		d.Sound.Model = SoundICH9
	}
	for i := range d.PanicDevices {
		if d.PanicDevices[i].Model == nil {
			d.PanicDevices[i].Model = ptr.To(PanicISA)
		}
	}
}
