package resolve

import (
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// pins are the places that the spec gives to devices. The layout gives them to no other device.
type pins map[v1.PCIPlace]bool

// pinsOf returns those of a valid spec.
func pinsOf(d *v1.Devices) pins {
	p := pins{}
	add := func(address string) {
		if place, err := v1.ParsePCIAddress(address); err == nil {
			p[place] = true
		}
	}
	for i := range d.Disks {
		if d.Disks[i].Disk != nil {
			add(d.Disks[i].Disk.PciAddress)
		}
	}
	for i := range d.Interfaces {
		add(d.Interfaces[i].PciAddress)
	}
	return p
}

func (p pins) has(place v1.PCIPlace) bool { return p[place] }

// pin returns the place that a valid address names.
func (a *allocator) pin(address string) qemuargs.PCIAddress {
	place, err := v1.ParsePCIAddress(address)
	if err != nil || place.Bus == 0 {
		return integrated(place.Slot)
	}
	return qemuargs.PCIAddress{Bus: rootPortID(int(place.Bus))}
}

// takes reports whether a device is in a root port.
func (a *allocator) takes(port int) bool {
	return port <= a.plugged || a.pinned.has(v1.PCIPlace{Bus: uint8(port)})
}

// total returns the number of root ports: all that are taken, and spare ones as far as they fit.
func (a *allocator) total(spare int) int {
	total := a.plugged
	for place := range a.pinned {
		total = max(total, int(place.Bus))
	}
	for port := 1; port <= total; port++ {
		if !a.takes(port) {
			spare--
		}
	}
	return min(total+max(spare, 0), maxRootPorts)
}

// giveWay moves devices that have a slot of their own on the root bus to free slots, where the spec gives their slot to
// another device.
func (a *allocator) giveWay(m *qemuargs.Machine, path *field.Path) field.ErrorList {
	taken, moved := pins{}, []place{}
	for place := range a.pinned {
		taken[place] = true
	}
	for _, p := range places(m) {
		slot := v1.PCIPlace{Slot: p.address.Slot}
		switch {
		case p.address.Bus != "pcie.0":
		case a.pinned.has(slot) && p.single:
			moved = append(moved, p)
		default:
			taken[slot] = true
		}
	}
	free := uint8(lastSlot)
	for _, p := range moved {
		for ; free >= integratedSlot && taken.has(v1.PCIPlace{Slot: free}); free-- {
		}
		if free < integratedSlot {
			return field.ErrorList{field.Invalid(path, "", fmt.Sprintf("no slot of the root bus is left for %s, whose own a pciAddress takes", p.part))}
		}
		p.address.Slot = free
		free--
	}
	return nil
}

// lastSlot of the root bus before the chipset's.
const lastSlot = 0x1e

// place is where a device of the Machine sits. single says that the device is no entry of a list: interfaces and disks
// have places that the allocator chose around the pinned ones, and a root port's or a SATA controller's slot is never
// pinned.
type place struct {
	part    string
	single  bool
	address *qemuargs.PCIAddress
}

// places returns those of the Machine's devices, whatever devices there are.
func places(m *qemuargs.Machine) (out []place) {
	add := func(part string, single bool, device reflect.Value) {
		for device.Kind() == reflect.Pointer {
			if device.IsNil() {
				return
			}
			device = device.Elem()
		}
		if device.Kind() != reflect.Struct {
			return
		}
		switch pci := device.FieldByName("PCI"); {
		case !pci.IsValid():
		case pci.Kind() == reflect.Pointer && !pci.IsNil():
			out = append(out, place{part, single, pci.Interface().(*qemuargs.PCIAddress)})
		case pci.Kind() == reflect.Struct:
			out = append(out, place{part, single, pci.Addr().Interface().(*qemuargs.PCIAddress)})
		}
	}
	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if f := v.Field(i); f.Kind() == reflect.Slice {
			for j := range f.Len() {
				add(name, false, f.Index(j))
			}
		} else {
			add(name, true, f)
		}
	}
	return out
}

// address returns the place of a disk on bus virtio.
func (b *diskBuses) address(disk *qemuargs.Disk, d *v1.Disk) qemuargs.PCIAddress {
	if b.transitional {
		disk.Driver = qemuargs.VirtioBlkTransitional
	}
	switch {
	case d.Disk.PciAddress != "":
		return b.slots.pin(d.Disk.PciAddress)
	case b.transitional:
		return b.slots.integrate()
	}
	return b.slots.plug()
}
