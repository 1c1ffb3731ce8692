package resolve

import (
	"errors"
	"fmt"
	"net"
	"slices"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// Origin is where a guest comes from that moves to another node.
type Origin struct {
	// Machine is the source's. QEMU takes a target with one device more without complaint, so the target gets
	// this Machine, and never one that is resolved anew.
	Machine qemuargs.Machine
	// QEMUVersion of the source's launcher.
	QEMUVersion string
	// Images are the source's facts about container disks, by volume. The source need not tell them.
	Images map[string]qemuargs.ImageFacts
}

// Arrival returns the Machine with which another node receives a VMI's guest. It is the source's, but for what the
// guest does not see and the node decides: the form of QEMU's monitor, and whether the kernel moves the packets. The
// source's launcher reports the Machine, and a launcher is a tenant's: so the VMI's spec says which interfaces there
// are.
func Arrival(vmi *v1.VirtualMachineInstance, from Origin, host Host) (*qemuargs.Machine, error) {
	m := from.Machine
	switch {
	case m.Version != qemuargs.Version:
		return nil, fmt.Errorf("the source's Machine has version %d, and this node knows version %d", m.Version, qemuargs.Version)
	case (m.Arch == qemuargs.ARM64) != (vmi.Spec.Architecture == v1.ARM64):
		return nil, fmt.Errorf("the source's Machine is one of %.16q, and the spec's architecture is %q", m.Arch, vmi.Spec.Architecture)
	case m.Accelerator != host.Accelerator:
		return nil, fmt.Errorf("the guest runs under %s, and this node has %s", m.Accelerator, host.Accelerator)
	}
	if err := checkMemory(vmi.Spec.Domain.Memory, &m); err != nil {
		return nil, err
	}
	if err := notOlder(from.QEMUVersion, host.QEMUVersion); err != nil {
		return nil, err
	}
	interfaces := vmi.Spec.Domain.Devices.Interfaces
	if len(m.NICs) != len(interfaces) {
		return nil, fmt.Errorf("the source's Machine has %d interfaces, and the spec %d", len(m.NICs), len(interfaces))
	}
	m.NICs = append([]qemuargs.NIC(nil), m.NICs...)
	for _, nic := range interfaces {
		at := slices.IndexFunc(m.NICs, func(n qemuargs.NIC) bool { return n.Name == nic.Name })
		if at < 0 {
			return nil, fmt.Errorf("the source's Machine has not the interface %q of the spec", nic.Name)
		}
		n := &m.NICs[at]
		if n.Queues != Queues(vmi, nic) || n.User != nil || n.HostDevice != "" {
			return nil, fmt.Errorf("the source's Machine has not the interface %q of the spec, with %d queues", nic.Name, Queues(vmi, nic))
		}
		if err := checkMAC(vmi, nic, n.MAC); err != nil {
			return nil, err
		}
		if (n.Passt != "") != (nic.PasstBinding != nil) {
			return nil, fmt.Errorf("the source's Machine has another binding than the spec at the interface %q", nic.Name)
		}
		if n.Passt != "" {
			n.Passt, n.Vhost = layout.PasstSocket(nic.Name), false
		}
		n.Vhost = n.Vhost && host.VhostNet
	}
	if err := checkDisks(&vmi.Spec.Domain.Devices, m.Disks); err != nil {
		return nil, err
	}
	if err := takeImages(vmi, &m, from.Images, host); err != nil {
		return nil, err
	}
	if err := chooseIO(vmi, &m, host); err != nil {
		return nil, err
	}
	m.MonitorObject = monitorObject(host.QEMUVersion)
	return &m, nil
}

// checkMemory refuses a guest with more memory than the spec's: the pod here has booked what the spec says.
func checkMemory(memory *v1.Memory, m *qemuargs.Machine) error {
	if memory == nil || memory.Guest == nil {
		return nil
	}
	parts := []int64{m.MemoryBytes}
	if m.Memory != nil {
		for _, d := range m.Memory.Devices {
			parts = append(parts, d.RequestedBytes)
		}
	}
	left := guestMemory(memory.Guest.Value())
	for _, part := range parts {
		if part < 0 || part > left {
			return fmt.Errorf("the source's Machine has more memory than the guest of the spec, which has %s", memory.Guest)
		}
		left -= part
	}
	return nil
}

// checkDisks refuses other disks than the spec's. Where they are, and what is behind them, is the Machine's to say.
func checkDisks(devices *v1.Devices, has []qemuargs.Disk) error {
	left := map[string]qemuargs.Disk{}
	for _, d := range has {
		if _, twice := left[d.Name]; twice {
			return fmt.Errorf("the source's Machine has the disk %.64q twice", d.Name)
		}
		left[d.Name] = d
	}
	for i := range devices.Disks {
		want := device(&devices.Disks[i])
		if want.Driver == qemuargs.VirtioBlk && devices.Transitional() {
			want.Driver = qemuargs.VirtioBlkTransitional
		}
		d, ok := left[want.Name]
		switch {
		case !ok:
			return fmt.Errorf("the source's Machine has not the disk %q of the spec", want.Name)
		case d.Driver != want.Driver, d.Serial != want.Serial, want.ReadOnly && !d.ReadOnly:
			return fmt.Errorf("the source's Machine has the disk %q as another device than the spec", want.Name)
		}
		delete(left, want.Name)
	}
	for name := range left {
		return fmt.Errorf("the source's Machine has the disk %.64q, and the spec has not", name)
	}
	return nil
}

// takeImages takes the images of container disks where this node's pod has them: by a path, or by a container that
// hands them out. What the guest sees of an image must be the same: a tag may name another image by now.
func takeImages(vmi *v1.VirtualMachineInstance, m *qemuargs.Machine, had map[string]qemuargs.ImageFacts,
	host Host) error {
	m.Disks = append([]qemuargs.Disk(nil), m.Disks...)
	for _, v := range vmi.Spec.Volumes {
		at := slices.IndexFunc(m.Disks, func(d qemuargs.Disk) bool { return d.Name == v.Name })
		if v.ContainerDisk == nil || at < 0 {
			continue
		}
		d, facts := &m.Disks[at], host.ContainerDisks[v.Name]
		was, told := had[v.Name] // of a disk without an overlay, the Machine has no size
		switch {
		case facts.Error != "":
			return fmt.Errorf("the disk %.64q cannot be had here: %s", d.Name, facts.Error)
		case facts.Format != d.Image.Format, d.Overlay != nil && d.Overlay.VirtualSize != facts.VirtualSize,
			told && was.VirtualSize != facts.VirtualSize:
			return fmt.Errorf("the disk %.64q has an image here of the format %s with %d bytes, and another at the source",
				d.Name, facts.Format, facts.VirtualSize)
		}
		image := containerImage(facts)
		// The source's kind of cache stays as the spec has it.
		image.Direct = image.Direct && !slices.ContainsFunc(vmi.Spec.Domain.Devices.Disks,
			func(of v1.Disk) bool { return of.Name == v.Name && inPageCache(&of) })
		if d.Image = image; d.AIO == qemuargs.Native && !goesPastCache(d) {
			return fmt.Errorf("the disk %.64q has io native, which needs O_DIRECT, which does not work on the image here",
				d.Name)
		}
	}
	return nil
}

// chooseIO chooses the kinds of I/O anew, which the guest does not see.
func chooseIO(vmi *v1.VirtualMachineInstance, m *qemuargs.Machine, host Host) error {
	wanted := map[string]v1.DriverIO{}
	for _, d := range vmi.Spec.Domain.Devices.Disks {
		wanted[d.Name] = d.IO
	}
	for i := range m.Disks {
		switch d := &m.Disks[i]; {
		case d.AIO == qemuargs.IOURing && !host.AIO.IOURing:
			return fmt.Errorf("the disk %.64q has io io_uring, which this node denies to pods", d.Name)
		case d.AIO == qemuargs.Native && !host.AIO.Native && wanted[d.Name] == v1.IONative:
			return fmt.Errorf("the disk %.64q has io native, for which this node has no room left (fs.aio-max-nr)", d.Name)
		case d.AIO == qemuargs.Native && !host.AIO.Native:
			d.AIO = ""
		}
	}
	return nil
}

// checkMAC refuses another hardware address than the spec's. With a bridge to the pod network, the spec need not have
// one: the guest has the address of its first pod's link.
func checkMAC(vmi *v1.VirtualMachineInstance, nic v1.Interface, mac string) error {
	address, err := net.ParseMAC(mac)
	if err != nil || len(address) != 6 || address[0]&1 != 0 {
		return fmt.Errorf("the source's Machine has the hardware address %.32q for interface %q", mac, nic.Name)
	}
	if want := MAC(vmi, nic, NIC{}); mac != want && (!nic.IsBridged() || nic.MacAddress != "" || !vmi.Spec.OnPods(nic.Name)) {
		return fmt.Errorf("the source's Machine has the hardware address %s for interface %q, and the spec %s", mac, nic.Name, want)
	}
	return nil
}

// errOlder: QEMU promises that a guest can go to the same and to later versions
// (docs/devel/migration/compatibility.rst).
var errOlder = errors.New("a guest cannot go to an older QEMU")

func notOlder(source, target string) error {
	from, err := release(source)
	if err != nil {
		return fmt.Errorf("read the source's QEMU version: %w", err)
	}
	to, err := release(target)
	if err != nil {
		return fmt.Errorf("read the target's QEMU version: %w", err)
	}
	if to.before(from) {
		return fmt.Errorf("%w: from %s to %s", errOlder, source, target)
	}
	return nil
}
