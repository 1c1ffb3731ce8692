package v1

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
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

// HasPanic says whether there is a panic device of a model.
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

func validateReboot(d *DomainSpec, path *field.Path) field.ErrorList {
	if d.RebootPolicy == nil {
		return nil
	}
	return oneOf(*d.RebootPolicy, path.Child("rebootPolicy"), RebootPolicyReboot, RebootPolicyTerminate)
}

func validateSoundAndPanic(d *Devices, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s := d.Sound; s != nil {
		p := path.Child("sound")
		if !deviceName.MatchString(s.Name) {
			errs = append(errs, field.Invalid(p.Child("name"), s.Name, deviceNameRule))
		}
		errs = append(errs, oneOf(s.Model, p.Child("model"), SoundICH9, SoundAC97)...)
	}
	var seen []PanicDeviceModel
	for i, device := range d.PanicDevices {
		p, model := path.Child("panicDevices").Index(i).Child("model"), ptr.Deref(device.Model, "")
		errs = append(errs, oneOf(model, p, PanicHyperv, PanicISA, PanicPVPanic)...)
		if slices.Contains(seen, model) {
			errs = append(errs, field.Duplicate(p, model))
		}
		seen = append(seen, model)
	}
	return errs
}

// maxACPIIndex is QEMU's ONBOARD_INDEX_MAX less one (hw/acpi/pcihp.c): 16384 itself is refused.
const maxACPIIndex = 16*1024 - 1

// validateACPIIndexes checks the numbers of cards that ACPI tells the guest.
func validateACPIIndexes(d *DomainSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[int]bool{}
	for i, nic := range d.Devices.Interfaces {
		p, n := path.Child("devices", "interfaces").Index(i).Child("acpiIndex"), nic.ACPIIndex
		switch {
		case n == 0:
		case n < 0 || n > maxACPIIndex:
			errs = append(errs, field.Invalid(p, n, "must be between 1 and 16383"))
		case seen[n]:
			errs = append(errs, field.Duplicate(p, n))
		case withoutACPI(d):
			errs = append(errs, field.Forbidden(p, "features.acpi.enabled is false: nothing tells the guest the number"))
		}
		seen[n] = true
	}
	return errs
}

// withoutACPI says whether the guest has no ACPI tables.
func withoutACPI(d *DomainSpec) bool {
	return d.Features != nil && !ptr.Deref(d.Features.ACPI.Enabled, true)
}
