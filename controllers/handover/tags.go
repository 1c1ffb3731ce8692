package handover

import (
	"fmt"
	"slices"
	"strings"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/cloudinit"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// tagged are the devices that have a tag, as a ConfigDrive tells the guest of them: interfaces, and then disks.
func tagged(vmi *v1.VirtualMachineInstance, m *qemuargs.Machine) []cloudinit.Device {
	var out []cloudinit.Device
	devices := &vmi.Spec.Domain.Devices
	for _, nic := range devices.Interfaces {
		i := slices.IndexFunc(m.NICs, func(n qemuargs.NIC) bool { return n.Name == nic.Name })
		if nic.Tag == "" || i < 0 {
			continue
		}
		out = append(out, cloudinit.Device{Type: "nic", Bus: "pci", Address: guestAddress(m.NICs[i].PCI), MAC: m.NICs[i].MAC, Tags: []string{nic.Tag}})
	}
	for _, disk := range devices.Disks {
		i := slices.IndexFunc(m.Disks, func(d qemuargs.Disk) bool { return d.Name == disk.Name })
		if disk.Tag == "" || i < 0 {
			continue
		}
		d := cloudinit.Device{Type: "disk", Serial: disk.Serial, Tags: []string{disk.Tag}}
		bus, _ := disk.Target()
		switch place := &m.Disks[i]; {
		case place.PCI != nil:
			d.Bus, d.Address = "pci", guestAddress(*place.PCI)
		case bus == v1.DiskBusSCSI && place.LUN != nil:
			d.Bus, d.Address = "scsi", fmt.Sprintf("0:0:0:%d", *place.LUN)
		default:
			d.Bus = string(bus)
		}
		out = append(out, d)
	}
	return out
}

// guestAddress is a PCI address as the guest sees it: the firmware numbers the buses behind the root ports in the ports'
// order, which is that of their names.
func guestAddress(a qemuargs.PCIAddress) string {
	bus := 0
	if name, ok := strings.CutPrefix(a.Bus, "pci."); ok {
		fmt.Sscanf(name, "%d", &bus)
	}
	return fmt.Sprintf("0000:%02x:%02x.%x", bus, a.Slot, a.Function)
}
