package validation

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const (
	maxUSBPorts = 15 // of a qemu-xhci
	// ofAMD64 is why a field is refused for arm64.
	ofAMD64 = "guests of arm64 have no such thing; it is of amd64"
)

// onlyAMD64 refuses a device that guests of arm64 cannot have.
func onlyAMD64(arch string, path *field.Path) field.ErrorList {
	if arch != v1.ARM64 {
		return nil
	}
	return field.ErrorList{field.Forbidden(path, ofAMD64)}
}

// validateARM64 returns what guests of arm64 cannot have of CPU, firmware, buses and features. The first rules are
// KubeVirt's. The rule that refuses a whole device stands in that device's file (onlyAMD64).
func validateARM64(spec *v1.VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
	if spec.Architecture != v1.ARM64 {
		return nil
	}
	d, domain := &spec.Domain, path.Child("domain")
	devices := domain.Child("devices")
	var errs field.ErrorList
	forbid := func(forbidden bool, at *field.Path, why string) {
		if forbidden {
			errs = append(errs, field.Forbidden(at, why))
		}
	}
	if d.Firmware.Bootloader != nil {
		forbid(d.Firmware.Bootloader.BIOS != nil, domain.Child("firmware", "bootloader", "bios"),
			"guests of arm64 start with UEFI: leave the boot loader out, or set efi")
	}
	if efi := d.UEFI(); efi != nil {
		forbid(efi.Secure(), domain.Child("firmware", "bootloader", "efi", "secureBoot"),
			"guests of arm64 have no secure boot: nothing would keep the guest from its firmware's keys; set it to false, or "+
				"leave it out")
	}
	forbid(d.Firmware.ACPI != nil, domain.Child("firmware", "acpi"), "QEMU adds no ACPI tables to a machine of arm64")
	cpu := domain.Child("cpu")
	if d.CPU.Model != v1.CPUModeHostPassthrough {
		errs = append(errs, field.NotSupported(cpu.Child("model"), d.CPU.Model, []string{v1.CPUModeHostPassthrough}))
	}
	if d.CPU.Threads != 1 {
		errs = append(errs, field.Invalid(cpu.Child("threads"), d.CPU.Threads,
			"the cores of guests of arm64 have one thread each"))
	}
	forbid(len(d.CPU.Features) > 0, cpu.Child("features"), "the CPU of a guest of arm64 is the node's, as it is")
	forbid(d.CPU.MaxSockets > d.CPU.Sockets, cpu.Child("maxSockets"), "QEMU plugs no CPUs into a machine of arm64")
	for i := range d.Devices.Disks {
		disk := &d.Devices.Disks[i]
		at := devices.Child("disks").Index(i)
		forbid(disk.Disk != nil && disk.Disk.Bus == v1.DiskBusSATA, at.Child("disk", "bus"),
			"guests of arm64 have no bus sata; use virtio, scsi or usb")
		forbid(disk.CDRom != nil && disk.CDRom.Bus == v1.DiskBusSATA, at.Child("cdrom", "bus"),
			"guests of arm64 have no bus sata; use scsi or usb")
	}
	usb := len(d.Devices.Inputs) + 2 // and a keyboard, and a tablet
	for i := range d.Devices.Disks {
		if bus, _ := d.Devices.Disks[i].Target(); bus == v1.DiskBusUSB {
			usb++
		}
	}
	forbid(usb > maxUSBPorts, devices.Child("inputs"),
		"the USB controller has 15 ports for keyboard, tablet, inputs and disks")
	for i, nic := range d.Devices.Interfaces {
		if nic.Model != "virtio" {
			errs = append(errs, field.NotSupported(devices.Child("interfaces").Index(i).Child("model"), nic.Model,
				[]string{"virtio"}))
		}
		forbid(nic.ACPIIndex != 0, devices.Child("interfaces").Index(i).Child("acpiIndex"),
			"QEMU tells guests of arm64 no number of a card")
	}
	if v := d.Devices.Video; v != nil && !slices.Contains([]string{"virtio", "ramfb"}, v.Type) {
		errs = append(errs, field.NotSupported(devices.Child("video", "type"), v.Type, []string{"virtio", "ramfb"}))
	}
	if f := d.Features; f != nil {
		at := domain.Child("features")
		forbid(f.SMM.Is(), at.Child("smm"), ofAMD64)
		forbid(f.Hyperv != nil && *f.Hyperv != (v1.FeatureHyperv{}), at.Child("hyperv"), ofAMD64)
		forbid(f.HypervPassthrough.Is(), at.Child("hypervPassthrough"), ofAMD64)
		forbid(f.KVM != nil && f.KVM.Hidden, at.Child("kvm", "hidden"), ofAMD64)
		forbid(f.Pvspinlock != nil, at.Child("pvspinlock"), ofAMD64)
		forbid(f.APIC != nil && f.APIC.EndOfInterrupt, at.Child("apic", "endOfInterrupt"), ofAMD64)
	}
	if d.Clock != nil && d.Clock.Timer != nil {
		t, at := d.Clock.Timer, domain.Child("clock", "timer")
		forbid(t.HPET != nil && ptr.Deref(t.HPET.Present, true), at.Child("hpet"), ofAMD64)
		forbid(t.PIT != nil && ptr.Deref(t.PIT.Present, true), at.Child("pit"), ofAMD64)
		forbid(t.KVM != nil && ptr.Deref(t.KVM.Present, true), at.Child("kvm"), ofAMD64)
		forbid(t.Hyperv != nil && ptr.Deref(t.Hyperv.Present, true), at.Child("hyperv"), ofAMD64)
		forbid(t.RTC != nil && t.RTC.TickPolicy == "catchup", at.Child("rtc", "tickPolicy"), ofAMD64)
	}
	return errs
}
