package v1

import (
	"slices"

	"k8s.io/utils/ptr"
)

// RebootPolicy is what a reboot of the guest does.
type RebootPolicy string

// Reboot policies.
const (
	RebootPolicyReboot    RebootPolicy = "Reboot"
	RebootPolicyTerminate RebootPolicy = "Terminate"
)

// PanicDevice is a device by which the guest's kernel tells that it has panicked.
type PanicDevice struct {
	// Model is isa (a port of the ISA bus, QEMU pvpanic), pvpanic (a PCI device, QEMU pvpanic-pci) or hyperv (registers of
	// Hyper-V that Windows writes to; only there under KVM). Default: isa.
	// +optional
	// +kubebuilder:validation:Enum=hyperv;isa;pvpanic
	Model *PanicDeviceModel `json:"model,omitempty"`
}

// PanicDeviceModel is a kind of PanicDevice.
type PanicDeviceModel string

// Models of panic devices.
const (
	PanicHyperv  PanicDeviceModel = "hyperv"
	PanicISA     PanicDeviceModel = "isa"
	PanicPVPanic PanicDeviceModel = "pvpanic"
)

// HasPanic reports whether there is a panic device of a model.
func (d *Devices) HasPanic(model PanicDeviceModel) bool {
	return slices.ContainsFunc(d.PanicDevices, func(p PanicDevice) bool { return ptr.Deref(p.Model, "") == model })
}

// SoundDevice is a sound card.
type SoundDevice struct {
	// Name of the device.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	Name string `json:"name"`
	// Model is ich9 (Intel HD Audio) or ac97. Default: ich9.
	// +optional
	// +kubebuilder:validation:Enum=ich9;ac97
	Model string `json:"model,omitempty"`
}

// Models of sound cards.
const (
	SoundICH9 = "ich9"
	SoundAC97 = "ac97"
)
