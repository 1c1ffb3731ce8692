package qemuargs

import (
	"fmt"
	"slices"
)

// Conflicts returns the paths in the Machine's JSON of what cannot be so: a device in a place that is taken or is not
// there, one on a controller or of a thread that the machine lacks, and a name that a list has twice.
func (m *Machine) Conflicts() (paths []string) {
	add := func(format string, a ...any) { paths = append(paths, fmt.Sprintf(format, a...)) }
	seen := map[string]bool{}
	for _, p := range m.parts() {
		if seen[p.name] {
			add("%s", p.name)
		}
		seen[p.name] = true
	}
	taken := map[PCIAddress]bool{}
	for _, p := range m.Places() {
		at := *p.Address
		port := at.Bus == RootBus || slices.ContainsFunc(m.RootPorts, func(r RootPort) bool { return r.ID == at.Bus })
		if taken[at] || !port {
			add("%s.pci", p.Part)
		}
		taken[at] = true
	}
	threads := map[string]bool{"": true}
	for _, t := range m.IOThreads {
		threads[t.ID] = true
	}
	lacks := func(id string) bool { return !threads[id] }
	if m.SCSI != nil && lacks(m.SCSI.IOThread) {
		add("scsi.ioThread")
	}
	luns, ports := map[int]bool{}, map[string]bool{}
	for _, i := range m.Inputs {
		if i.Port > 0 {
			ports[portOf(USBBus, i.Port)] = true
		}
	}
	for _, d := range m.Disks {
		if lacks(d.IOThread) || slices.ContainsFunc(d.IOThreadPool, lacks) {
			add("disks[%s].ioThread", d.Name)
		}
		if port := portOf(d.Bus, d.USBPort); d.Bus != SCSIBus {
			if d.Bus != "" && ports[port] {
				add("disks[%s].bus", d.Name)
			}
			ports[port] = true
			continue
		}
		if m.SCSI == nil || d.LUN == nil || luns[*d.LUN] {
			add("disks[%s].lun", d.Name)
			continue
		}
		luns[*d.LUN] = true
	}
	return paths
}

// portOf returns a name for a port of a controller. A drive on SATA has a bus to itself.
func portOf(bus string, port int) string { return fmt.Sprintf("%s/%d", bus, port) }
