package validation

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

var videoTypes = []string{"vga", "virtio", "bochs", "ramfb"}

// onUSB returns how many disks are on the USB controller, and inputs if there are such disks.
func onUSB(d *v1.Devices) int {
	disks, inputs := 0, 0
	for i := range d.Disks {
		if bus, _ := d.Disks[i].Target(); bus == v1.DiskBusUSB {
			disks++
		}
	}
	for _, in := range d.Inputs {
		if in.Bus == "usb" {
			inputs++
		}
	}
	if disks == 0 {
		return 0
	}
	return disks + inputs
}

func validateDevices(d *v1.Devices, arch string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if w := d.Watchdog; w != nil {
		p := path.Child("watchdog")
		errs = append(errs, onlyAMD64(arch, p)...)
		if !deviceName.MatchString(w.Name) {
			errs = append(errs, field.Invalid(p.Child("name"), w.Name, deviceNameRule))
		}
		errs = append(errs, oneOf(w.I6300ESB.Action, p.Child("i6300esb", "action"), "reset", "poweroff", "shutdown")...)
	}
	const maxInputs = 15 // ports of a qemu-xhci
	if len(d.Inputs) > maxInputs {
		errs = append(errs, field.TooMany(path.Child("inputs"), len(d.Inputs), maxInputs))
	}
	if n := onUSB(d); n > maxInputs {
		errs = append(errs, field.Invalid(path.Child("disks"), n,
			fmt.Sprintf("the USB controller has %d ports for disks and inputs on bus usb", maxInputs)))
	}
	seen := map[string]bool{}
	for i, input := range d.Inputs {
		p := path.Child("inputs").Index(i)
		if seen[input.Name] {
			errs = append(errs, field.Duplicate(p.Child("name"), input.Name))
		}
		seen[input.Name] = true
		if !deviceName.MatchString(input.Name) {
			errs = append(errs, field.Invalid(p.Child("name"), input.Name, deviceNameRule))
		}
		errs = append(errs, oneOf(input.Type, p.Child("type"), "tablet")...)
		errs = append(errs, oneOf(input.Bus, p.Child("bus"), "usb", "virtio")...)
	}
	errs = append(errs, validateSoundAndPanic(d, arch, path)...)
	if d.Video != nil {
		errs = append(errs, oneOf(d.Video.Type, path.Child("video", "type"), videoTypes...)...)
		if !ptr.Deref(d.AutoattachGraphicsDevice, true) {
			errs = append(errs, field.Forbidden(path.Child("video"),
				"autoattachGraphicsDevice is false: there is no graphics card"))
		}
	}
	return errs
}

const deviceNameRule = "must be at most 63 letters, digits, '-', '_' and '.', and begin and end with a letter or digit"

// oneOf refuses a value that is not among the allowed ones.
func oneOf[T ~string](value T, path *field.Path, allowed ...T) field.ErrorList {
	for _, a := range allowed {
		if value == a {
			return nil
		}
	}
	return field.ErrorList{field.NotSupported(path, value, allowed)}
}

func validateIOThreads(d *v1.DomainSpec, path *field.Path) field.ErrorList {
	policy := ptr.Deref(d.IOThreadsPolicy, "")
	errs := oneOf(policy, path.Child("ioThreadsPolicy"), "", v1.IOThreadsPolicyShared, v1.IOThreadsPolicyAuto,
		v1.IOThreadsPolicySupplementalPool)
	count := path.Child("ioThreads", "supplementalPoolThreadCount")
	var threads *uint32
	if d.IOThreads != nil {
		threads = d.IOThreads.SupplementalPoolThreadCount
	}
	own := 0
	for _, disk := range d.Devices.Disks {
		if ptr.Deref(disk.DedicatedIOThread, false) {
			own++
		}
	}
	if own > v1.MaxIOThreads {
		errs = append(errs, field.Invalid(path.Child("devices", "disks"), own,
			fmt.Sprintf("a machine has %d threads for disks at most, and more disks ask for their own (dedicatedIOThread)",
				v1.MaxIOThreads)))
	}
	switch {
	case threads == nil && policy == v1.IOThreadsPolicySupplementalPool:
		errs = append(errs, field.Required(count, "the policy supplementalPool needs the number of its threads"))
	case threads == nil:
	case policy != v1.IOThreadsPolicySupplementalPool:
		errs = append(errs, field.Forbidden(count, "only the policy supplementalPool has a pool of threads"))
	case *threads < 1 || *threads > v1.MaxIOThreads:
		errs = append(errs, field.Invalid(count, *threads, fmt.Sprintf("must be between 1 and %d", v1.MaxIOThreads)))
	}
	return errs
}

func validateReboot(d *v1.DomainSpec, path *field.Path) field.ErrorList {
	if d.RebootPolicy == nil {
		return nil
	}
	return oneOf(*d.RebootPolicy, path.Child("rebootPolicy"), v1.RebootPolicyReboot, v1.RebootPolicyTerminate)
}

func validateSoundAndPanic(d *v1.Devices, arch string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s := d.Sound; s != nil {
		p := path.Child("sound")
		errs = append(errs, onlyAMD64(arch, p)...)
		if !deviceName.MatchString(s.Name) {
			errs = append(errs, field.Invalid(p.Child("name"), s.Name, deviceNameRule))
		}
		errs = append(errs, oneOf(s.Model, p.Child("model"), v1.SoundICH9, v1.SoundAC97)...)
	}
	var seen []v1.PanicDeviceModel
	for i, device := range d.PanicDevices {
		p, model := path.Child("panicDevices").Index(i).Child("model"), ptr.Deref(device.Model, "")
		errs = append(errs, oneOf(model, p, v1.PanicHyperv, v1.PanicISA, v1.PanicPVPanic)...)
		if arch == v1.ARM64 && (model == v1.PanicISA || model == v1.PanicHyperv) {
			errs = append(errs, field.Forbidden(p,
				"guests of arm64 have no such panic device; use pvpanic, or leave the model out"))
		}
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
func validateACPIIndexes(d *v1.DomainSpec, path *field.Path) field.ErrorList {
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

// withoutACPI reports whether the guest has no ACPI tables.
func withoutACPI(d *v1.DomainSpec) bool {
	return d.Features != nil && !ptr.Deref(d.Features.ACPI.Enabled, true)
}

// validatePCIAddresses checks the addresses of disks and interfaces, which share the buses.
func validatePCIAddresses(d *v1.Devices, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	taken := map[v1.PCIPlace]bool{}
	check := func(text string, conventional bool, p *field.Path) {
		if text == "" {
			return
		}
		place, err := v1.ParsePCIAddress(text)
		switch {
		case err != nil:
			errs = append(errs, field.Invalid(p, text, err.Error()))
		case conventional && place.Bus > 0:
			errs = append(errs, field.Invalid(p, text, "a conventional PCI device cannot sit in a root port; use bus 00"))
		case taken[place]:
			errs = append(errs, field.Duplicate(p, text))
		}
		taken[place] = true
	}
	transitional := d.Transitional()
	for i, disk := range d.Disks {
		if disk.Disk == nil || disk.Disk.PciAddress == "" {
			continue
		}
		p := path.Child("disks").Index(i).Child("disk", "pciAddress")
		if disk.Disk.Bus != v1.DiskBusVirtio {
			errs = append(errs, field.Forbidden(p, "only a disk on bus virtio is a PCI device"))
			continue
		}
		check(disk.Disk.PciAddress, transitional, p)
	}
	for i, nic := range d.Interfaces {
		check(nic.PciAddress, nic.Conventional(transitional), path.Child("interfaces").Index(i).Child("pciAddress"))
	}
	return errs
}
