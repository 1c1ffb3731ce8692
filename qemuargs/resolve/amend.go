package resolve

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Amend returns the Machine that a VMI's running machine is to become, by the VMI's spec. What is in both keeps its
// place, by its name: its PCI address, LUN or port. What is new gets the first place that is free. Controllers and root
// ports stay, whether anything is on them or not. qemuargs.Become tells how to get there.
//
// host has the facts of the node now. Amend keeps what the guest does not see, and what the node decided when it
// started the guest.
func Amend(vmi *v1.VirtualMachineInstance, host Host, running *qemuargs.Machine) (*qemuargs.Machine, field.ErrorList) {
	begun := vmi.DeepCopy()
	v1.Default(begun)
	plugged := pluggedCPUs(begun.Spec.Domain.CPU, running.CPU)
	m, errs := machine(begun, host, running)
	if len(errs) > 0 {
		return nil, errs
	}
	m.CPU.Plugged = plugged
	before := running.Conflicts()
	for _, path := range m.Conflicts() {
		if slices.Contains(before, path) {
			continue
		}
		errs = append(errs, field.Forbidden(field.NewPath("spec", "domain", "devices"),
			fmt.Sprintf("the running machine has no place for %s; a restart places the devices anew", path)))
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return m, nil
}

// pluggedCPUs returns the CPUs that are plugged once the guest has the spec's sockets. It makes the sockets of the spec
// those that the guest began with, by which queues are counted. It leaves a spec alone that no plugging fulfils.
func pluggedCPUs(spec *v1.CPU, running qemuargs.CPU) (plugged []qemuargs.PluggedCPU) {
	wanted := spec.Sockets
	if wanted <= running.Sockets || wanted > running.MaxSockets || spec.Cores != running.Cores ||
		spec.Threads != running.Threads {
		return nil
	}
	spec.Sockets = running.Sockets
	for socket := running.Sockets; socket < wanted; socket++ {
		for core := range running.Cores {
			for thread := range running.Threads {
				plugged = append(plugged, qemuargs.PluggedCPU{ID: fmt.Sprintf("cpu-%d-%d-%d", socket, core, thread),
					Socket: socket, Core: core, Thread: thread})
			}
		}
	}
	return plugged
}

// slotsOf returns the PCI places that are left: all but those that the spec pins, and those of a running machine.
func slotsOf(domain *v1.DomainSpec, running *qemuargs.Machine) *allocator {
	a := &allocator{pinned: pinsOf(&domain.Devices), held: map[string]qemuargs.PCIAddress{}, taken: pins{}}
	if running == nil {
		return a
	}
	for _, p := range running.Places() {
		a.held[p.Part] = *p.Address
		a.taken[pinOf(*p.Address)] = true
	}
	return a
}

// runningDisks returns the disks of the running machine, by their names.
func (b *build) runningDisks() map[string]qemuargs.Disk {
	disks := map[string]qemuargs.Disk{}
	if b.running != nil {
		for _, d := range b.running.Disks {
			disks[d.Name] = d
		}
	}
	return disks
}

// scsiPlace returns where the SCSI controller is. One that comes later is in a root port.
func (b *build) scsiPlace() qemuargs.PCIAddress {
	switch {
	case b.running == nil:
		return integrated(scsiSlot)
	case b.running.SCSI != nil:
		return b.running.SCSI.PCI
	}
	return b.slots.plug("scsi")
}

// keep gives the machine what it has of the running one: controllers and root ports, and what the node decided. The
// error is that too few root ports are left.
func (b *build) keep() error {
	m, was := b.m, b.running
	for _, p := range m.Places() {
		if at, held := b.slots.held[p.Part]; held && p.Single {
			*p.Address = at
		}
	}
	m.MonitorObject = was.MonitorObject
	if was.SCSI != nil {
		m.SCSI = ptr.To(*was.SCSI)
	}
	if len(was.AHCI) > len(m.AHCI) {
		m.AHCI = slices.Clone(was.AHCI)
	}
	m.SATA = m.SATA || was.SATA
	if was.USB != nil && (m.USB == nil || m.USB.Ports < was.USB.Ports) {
		m.USB = ptr.To(*was.USB)
	}
	if m.Clock.Start == 0 {
		m.Clock.Start = was.Clock.Start // of the moment when QEMU began
	}
	keepCPU(&m.CPU, was.CPU)
	keepNICs(m, was)
	keepDisks(m, b.runningDisks())
	keepThreads(m, was)
	return keepPorts(m, was, b.slots.plugged)
}

// keepCPU keeps what the launcher found out of the node's features (settle), if the flags are the same but for that:
// those that the guest lacks are off, and those that it has are required.
func keepCPU(cpu *qemuargs.CPU, was qemuargs.CPU) {
	if len(cpu.Flags) != len(was.Flags) {
		return
	}
	found := slices.Clone(cpu.Required)
	for i, flag := range cpu.Flags {
		name, on := strings.CutSuffix(flag, "="+string(qemuargs.On))
		switch was.Flags[i] {
		case flag:
			found = append(found, name)
		case name + "=" + string(qemuargs.Off):
			if !on {
				return
			}
		default:
			return
		}
	}
	if !slices.ContainsFunc(was.Required, func(name string) bool { return !slices.Contains(found, name) }) {
		cpu.Flags, cpu.Required = slices.Clone(was.Flags), slices.Clone(was.Required)
	}
}

// keepNICs keeps who moves the packets of the cards that stay, and whether their links are refreshed after a move.
func keepNICs(m, was *qemuargs.Machine) {
	for i := range m.NICs {
		for _, old := range was.NICs {
			if old.Name == m.NICs[i].Name {
				m.NICs[i].Vhost, m.NICs[i].RefreshLink = old.Vhost, old.RefreshLink
			}
		}
	}
}

// keepDisks keeps of the disks that stay what was decided when they came: the thread, and how their image was made
// and has grown.
func keepDisks(m *qemuargs.Machine, was map[string]qemuargs.Disk) {
	for i := range m.Disks {
		d := &m.Disks[i]
		old, stays := was[d.Name]
		if !stays {
			continue
		}
		d.IOThread, d.IOThreadPool = old.IOThread, old.IOThreadPool
		made := d.Image
		made.Create, made.Packed, made.Size = old.Image.Create, old.Image.Packed, old.Image.Size
		if made == old.Image {
			d.Image = made
		}
	}
}

// keepThreads keeps the threads of the running machine, and adds those of disks that come.
func keepThreads(m, was *qemuargs.Machine) {
	has := map[string]bool{}
	threads := append([]qemuargs.IOThread(nil), was.IOThreads...)
	for _, t := range threads {
		has[t.ID] = true
	}
	var used []string
	if m.SCSI != nil {
		used = append(used, m.SCSI.IOThread)
	}
	for _, d := range m.Disks {
		used = append(append(used, d.IOThread), d.IOThreadPool...)
	}
	for _, id := range used {
		if id != "" && !has[id] {
			has[id] = true
			threads = append(threads, qemuargs.IOThread{ID: id})
		}
	}
	m.IOThreads = threads
}

// keepPorts keeps the root ports: QEMU plugs none. last is the highest one that a device has got now.
func keepPorts(m, was *qemuargs.Machine, last int) error {
	if last > len(was.RootPorts) {
		return fmt.Errorf("the machine has %d PCI Express ports, and no more are free: a device more needs a restart",
			len(was.RootPorts))
	}
	taken := map[string]bool{}
	for _, p := range m.Places() {
		taken[p.Address.Bus] = true
	}
	m.RootPorts = append([]qemuargs.RootPort(nil), was.RootPorts...)
	for i := range m.RootPorts {
		m.RootPorts[i].Spare = !taken[m.RootPorts[i].ID]
	}
	return nil
}
