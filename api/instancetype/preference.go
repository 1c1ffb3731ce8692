package instancetype

import (
	"reflect"

	"k8s.io/utils/ptr"

	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// prefer sets a field that is not set.
func prefer[T any](field *T, preferred T) {
	if reflect.ValueOf(field).Elem().IsZero() {
		*field = preferred
	}
}

// preferCopy is prefer for pointers: it copies the value.
func preferCopy[T any](field **T, preferred *T) {
	if *field == nil && preferred != nil {
		*field = ptr.To(*preferred)
	}
}

func applyPreference(p *v1beta1.VirtualMachinePreferenceSpec, vmi *v1.VirtualMachineInstance) {
	spec := &vmi.Spec
	prefer(&spec.Architecture, p.PreferredArchitecture)
	prefer(&spec.Subdomain, p.PreferredSubdomain)
	preferCopy(&spec.TerminationGracePeriodSeconds, p.PreferredTerminationGracePeriodSeconds)
	vmi.Annotations = merge(vmi.Annotations, p.Annotations)
	if p.Machine != nil && p.Machine.PreferredMachineType != "" {
		if spec.Domain.Machine == nil {
			spec.Domain.Machine = &v1.Machine{}
		}
		prefer(&spec.Domain.Machine.Type, p.Machine.PreferredMachineType)
	}
	applyCPUFeatures(p.CPU, &spec.Domain)
	applyClock(p.Clock, &spec.Domain)
	applyFeatures(p.Features, &spec.Domain)
	applyFirmware(p.Firmware, &spec.Domain)
	if p.Devices != nil {
		applyAttachments(p.Devices, &spec.Domain.Devices)
		v1.AttachDevices(spec)
		applyBuses(p.Devices, &spec.Domain.Devices)
		applyInterfaces(p.Devices, spec)
	}
}

func applyClock(p *v1beta1.ClockPreferences, d *v1.DomainSpec) {
	if p == nil {
		return
	}
	if d.Clock == nil {
		d.Clock = &v1.Clock{}
	}
	if o := p.PreferredClockOffset.DeepCopy(); o != nil && d.Clock.UTC == nil && d.Clock.Timezone == "" {
		d.Clock.UTC, d.Clock.Timezone = o.UTC, o.Timezone
	}
	if d.Clock.Timer == nil {
		d.Clock.Timer = p.PreferredTimer.DeepCopy()
	}
}

func applyFeatures(p *v1beta1.FeaturePreferences, d *v1.DomainSpec) {
	if p == nil {
		return
	}
	if d.Features == nil {
		d.Features = &v1.Features{}
	}
	if p.PreferredAcpi != nil {
		preferCopy(&d.Features.ACPI.Enabled, p.PreferredAcpi.Enabled)
	}
	if d.Features.APIC == nil {
		d.Features.APIC = p.PreferredApic.DeepCopy()
	}
	if d.Features.SMM == nil {
		d.Features.SMM = p.PreferredSmm.DeepCopy()
	}
	if d.Features.KVM == nil {
		d.Features.KVM = p.PreferredKvm.DeepCopy()
	}
	if d.Features.Pvspinlock == nil {
		d.Features.Pvspinlock = p.PreferredPvspinlock.DeepCopy()
	}
	applyHyperv(p.PreferredHyperv, d.Features)
}

// applyFirmware leaves the choice between BIOS and UEFI to a template that names one of the two.
func applyFirmware(p *v1beta1.FirmwarePreferences, d *v1.DomainSpec) {
	if p == nil {
		return
	}
	if efi := d.UEFI(); efi != nil && p.PreferredEfi == nil {
		preferCopy(&efi.SecureBoot, p.PreferredUseSecureBoot)
	}
	loader := preferredBootloader(p)
	if loader == nil || d.Firmware != nil && d.Firmware.Bootloader != nil && *d.Firmware.Bootloader != (v1.Bootloader{}) {
		return
	}
	if d.Firmware == nil {
		d.Firmware = &v1.Firmware{}
	}
	d.Firmware.Bootloader = loader
}

// preferredBootloader is nil if a preference says nothing of it.
func preferredBootloader(p *v1beta1.FirmwarePreferences) *v1.Bootloader {
	switch {
	case ptr.Deref(p.PreferredUseBios, false):
		loader := &v1.Bootloader{BIOS: &v1.BIOS{}}
		preferCopy(&loader.BIOS.UseSerial, p.PreferredUseBiosSerial)
		return loader
	case p.PreferredEfi != nil:
		return &v1.Bootloader{EFI: p.PreferredEfi.DeepCopy()}
	case ptr.Deref(p.PreferredUseEfi, false):
		loader := &v1.Bootloader{EFI: &v1.EFI{}}
		preferCopy(&loader.EFI.SecureBoot, p.PreferredUseSecureBoot)
		return loader
	}
	return nil
}

// applyAttachments sets which devices the spec implies.
func applyAttachments(p *v1beta1.DevicePreferences, d *v1.Devices) {
	preferCopy(&d.AutoattachGraphicsDevice, p.PreferredAutoattachGraphicsDevice)
	preferCopy(&d.AutoattachMemBalloon, p.PreferredAutoattachMemBalloon)
	preferCopy(&d.AutoattachPodInterface, p.PreferredAutoattachPodInterface)
	preferCopy(&d.AutoattachSerialConsole, p.PreferredAutoattachSerialConsole)
	preferCopy(&d.AutoattachInputDevice, p.PreferredAutoattachInputDevice)
	preferCopy(&d.BlockMultiQueue, p.PreferredBlockMultiQueue)
	preferCopy(&d.NetworkInterfaceMultiQueue, p.PreferredNetworkInterfaceMultiQueue)
	preferCopy(&d.Rng, p.PreferredRng)
	if d.TPM == nil {
		d.TPM = p.PreferredTPM.DeepCopy()
	}
	preferCopy(&d.UseVirtioTransitional, p.PreferredUseVirtioTransitional)
}

// applyBuses comes after applyAttachments: it also sets the buses of devices that the spec
// implies.
func applyBuses(p *v1beta1.DevicePreferences, d *v1.Devices) {
	if p.PreferredVideoType != "" && ptr.Deref(d.AutoattachGraphicsDevice, true) {
		if d.Video == nil {
			d.Video = &v1.VideoDevice{}
		}
		prefer(&d.Video.Type, p.PreferredVideoType)
	}
	for i := range d.Inputs {
		prefer(&d.Inputs[i].Bus, p.PreferredInputBus)
		prefer(&d.Inputs[i].Type, p.PreferredInputType)
	}
	if d.Sound != nil {
		prefer(&d.Sound.Model, p.PreferredSoundModel)
	}
	for i := range d.PanicDevices {
		preferCopy(&d.PanicDevices[i].Model, p.PreferredPanicDeviceModel)
	}
	for i := range d.Disks {
		disk := &d.Disks[i]
		if disk.CDRom != nil {
			prefer(&disk.CDRom.Bus, p.PreferredCdromBus)
			continue
		}
		if disk.Lun != nil {
			prefer(&disk.Lun.Bus, p.PreferredLunBus)
			continue
		}
		if disk.Disk == nil && p.PreferredDiskBus != "" {
			disk.Disk = &v1.DiskTarget{}
		}
		if disk.Disk != nil {
			prefer(&disk.Disk.Bus, p.PreferredDiskBus)
		}
		applyTuning(p, disk)
	}
}

// applyTuning sets how a hard disk's data is read and written. A preference that the disk's own fields, or its bus, leave no room for has
// no effect.
func applyTuning(p *v1beta1.DevicePreferences, disk *v1.Disk) {
	past := func(c v1.DriverCache) bool { return c == "" || c == v1.CacheNone }
	if past(p.PreferredDiskCache) || !disk.IsShared() && disk.IO != v1.IONative {
		prefer(&disk.Cache, p.PreferredDiskCache)
	}
	if p.PreferredDiskIO != v1.IONative || past(disk.Cache) {
		prefer(&disk.IO, p.PreferredDiskIO)
	}
	if disk.BlockSize == nil && canHave(disk, p.PreferredDiskBlockSize) {
		disk.BlockSize = p.PreferredDiskBlockSize.DeepCopy()
	}
	if disk.Disk != nil && disk.Disk.Bus == v1.DiskBusVirtio {
		preferCopy(&disk.DedicatedIOThread, p.PreferredDiskDedicatedIoThread)
	}
}

// canHave says whether a hard disk can have sectors of a size. A disk on bus usb has those of 512 bytes alone. So has a disk on bus sata, which
// is the bus of a disk that names none, but there the size of physical blocks is free.
func canHave(disk *v1.Disk, size *v1.BlockSize) bool {
	switch {
	case disk.Disk == nil || disk.Disk.Bus == "" || disk.Disk.Bus == v1.DiskBusSATA:
		return size == nil || !size.MatchesVolume() && (size.Custom == nil || size.Custom.Logical == v1.MinBlockSize)
	case disk.Disk.Bus == v1.DiskBusUSB:
		return false
	}
	return true
}

func applyInterfaces(p *v1beta1.DevicePreferences, spec *v1.VirtualMachineInstanceSpec) {
	pod := map[string]bool{}
	for _, n := range spec.Networks {
		pod[n.Name] = n.Pod != nil
	}
	for i := range spec.Domain.Devices.Interfaces {
		nic := &spec.Domain.Devices.Interfaces[i]
		prefer(&nic.Model, p.PreferredInterfaceModel)
		if p.PreferredInterfaceMasquerade != nil && pod[nic.Name] && nic.Bridge == nil && nic.Masquerade == nil && nic.Binding == nil && nic.SRIOV == nil && nic.PasstBinding == nil {
			nic.Masquerade = &v1.InterfaceMasquerade{}
		}
	}
}
