package v1

import (
	"strings"

	"k8s.io/utils/ptr"
)

// Architectures of guests, by Kubernetes' names.
const (
	AMD64 = "amd64"
	ARM64 = "arm64"
)

// Architectures returns all architectures of guests.
func Architectures() []string { return []string{AMD64, ARM64} }

// NewestMachineType returns the name of an architecture's newest machine type, or an empty text for an architecture
// that no guest has.
func NewestMachineType(architecture string) string {
	switch architecture {
	case AMD64:
		return "q35"
	case ARM64:
		return "virt"
	}
	return ""
}

// Architecture returns the architecture of a machine type, or else amd64. A VirtualMachine that names no architecture
// keeps the machine type of its first start: so it keeps the architecture too.
func (m *Machine) Architecture() string {
	if m != nil && strings.HasPrefix(m.Type, NewestMachineType(ARM64)) {
		return ARM64
	}
	return AMD64
}

// CPUModeHostPassthrough is the CPU model that has the guest see the node's own CPU.
const CPUModeHostPassthrough = "host-passthrough"

// defaultARM64 fills in, before the other defaults, what is different for guests of arm64. The rules are KubeVirt's,
// but for the bus of a CD-ROM, for which KubeVirt's default, virtio, is one that KubeVirt refuses.
func defaultARM64(spec *VirtualMachineInstanceSpec) {
	d := &spec.Domain
	if d.CPU == nil {
		d.CPU = &CPU{}
	}
	if d.CPU.Model == "" {
		d.CPU.Model = CPUModeHostPassthrough
	}
	if d.Firmware == nil {
		d.Firmware = &Firmware{}
	}
	if d.Firmware.Bootloader == nil || *d.Firmware.Bootloader == (Bootloader{}) {
		d.Firmware.Bootloader = &Bootloader{EFI: &EFI{}}
	}
	if efi := d.UEFI(); efi != nil && efi.SecureBoot == nil {
		efi.SecureBoot = ptr.To(false)
	}
	if d.Devices.Video != nil && d.Devices.Video.Type == "" {
		d.Devices.Video.Type = "virtio"
	}
	for i := range d.Devices.PanicDevices {
		if d.Devices.PanicDevices[i].Model == nil {
			d.Devices.PanicDevices[i].Model = ptr.To(PanicPVPanic)
		}
	}
	for i := range d.Devices.Disks {
		disk := &d.Devices.Disks[i]
		switch {
		case disk.CDRom != nil && disk.CDRom.Bus == "":
			disk.CDRom.Bus = DiskBusSCSI
		case disk.CDRom == nil && disk.Lun == nil && disk.Disk == nil:
			disk.Disk = &DiskTarget{Bus: DiskBusVirtio}
		case disk.Disk != nil && disk.Disk.Bus == "":
			disk.Disk.Bus = DiskBusVirtio
		}
	}
}
