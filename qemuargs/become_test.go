package qemuargs

import (
	"reflect"
	"slices"
	"testing"
)

func twoPorts() []RootPort {
	return []RootPort{{ID: "pci.1", PCI: PCIAddress{Bus: RootBus, Slot: 2}},
		{ID: "pci.2", PCI: PCIAddress{Bus: RootBus, Slot: 2, Function: 1}}}
}

// TestNoChangeLeavesADeviceWithoutItsPlace: what would have no controller, no thread or no port, or would sit where another
// device sits, needs a restart. So does a name that comes twice.
func TestNoChangeLeavesADeviceWithoutItsPlace(t *testing.T) {
	lun := 0
	whole := Machine{RootPorts: twoPorts(), IOThreads: []IOThread{{ID: "iothread1"}},
		SCSI: &SCSI{PCI: PCIAddress{Bus: "pci.1"}},
		Disks: []Disk{{Name: "a", Driver: SCSIDisk, Bus: SCSIBus, LUN: &lun},
			{Name: "b", Driver: VirtioBlk, PCI: &PCIAddress{Bus: "pci.2"}, IOThread: "iothread1"}}}
	if paths := whole.Conflicts(); len(paths) > 0 {
		t.Fatalf("%q", paths)
	}
	for name, c := range map[string]struct {
		change func(*Machine)
		want   []string
	}{
		"the controller goes": {func(m *Machine) { m.SCSI = nil }, []string{"disks[a].lun"}},
		"the thread goes":     {func(m *Machine) { m.IOThreads = nil }, []string{"disks[b].ioThread"}},
		"one LUN for two": {func(m *Machine) {
			m.Disks = append(m.Disks, Disk{Name: "c", Driver: SCSIDisk, Bus: SCSIBus, LUN: &lun})
		}, []string{"disks[c].lun"}},
		"one SATA bus for two": {func(m *Machine) {
			m.Disks = append(m.Disks, Disk{Name: "c", Bus: "ide.0"}, Disk{Name: "d", Bus: "ide.0"})
		}, []string{"disks[c]", "disks[d]", "disks[d].bus"}},
		"one USB port for two": {func(m *Machine) {
			m.Inputs = []Input{{Name: "tablet", Port: 1}}
			m.Disks = append(m.Disks, Disk{Name: "c", Bus: USBBus, USBPort: 1})
		}, []string{"disks[c]", "inputs[tablet]", "disks[c].bus"}},
		"one port for two": {func(m *Machine) {
			m.NICs = []NIC{{Name: "lan", PCI: PCIAddress{Bus: "pci.2"}}}
		}, []string{"disks[b].pci"}},
		"a port that is not there": {func(m *Machine) {
			m.NICs = []NIC{{Name: "lan", PCI: PCIAddress{Bus: "pci.3"}}}
		}, []string{"nics[lan].pci"}},
		"a name twice": {func(m *Machine) { m.Disks = append(m.Disks, m.Disks[1]) }, []string{"disks[b]", "disks[b].pci"}},
		"memory without places": {func(m *Machine) {
			m.Memory = &MemoryPlaces{MaxBytes: 1 << 30, Devices: []MemoryDevice{{ID: "m", PCI: PCIAddress{Bus: "pci.2"}}}}
		}, []string{"memory.maxBytes", "memory.devices[m].pci"}},
	} {
		next := whole
		next.Disks, next.IOThreads = slices.Clone(whole.Disks), slices.Clone(whole.IOThreads)
		c.change(&next)
		if _, restart := Become(&whole, &next, Sets{}); !reflect.DeepEqual(restart, c.want) {
			t.Errorf("%s: %q, want %q", name, restart, c.want)
		}
	}
}

// TestMachineGetsTheOrderOfTheOther: once a machine has become another, its lists have the other's order.
func TestMachineGetsTheOrderOfTheOther(t *testing.T) {
	from := Machine{RootPorts: twoPorts(), NICs: []NIC{{Name: "b", PCI: PCIAddress{Bus: "pci.2"}}}}
	to := from
	to.NICs = []NIC{{Name: "a", PCI: PCIAddress{Bus: "pci.1"}}, from.NICs[0]}
	changes, restart := Become(&from, &to, Sets{})
	now := from
	for _, c := range changes {
		now = now.Apply(c)
	}
	if len(restart) > 0 || len(changes) != 2 || !reflect.DeepEqual(now, to) {
		t.Errorf("%d changes, %q: %+v", len(changes), restart, now.NICs)
	}
}
