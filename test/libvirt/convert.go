package libvirt

import (
	"encoding/xml"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// nonTransitional is the model by which libvirt knows virtio devices that are of virtio 1 alone.
const nonTransitional = "virtio-non-transitional"

// virtioModel is libvirt's model of a virtio device.
func virtioModel(transitional bool) string {
	if transitional {
		return "virtio-transitional"
	}
	return nonTransitional
}

// Of describes a Machine to libvirt with the elements that KubeVirt's converter
// (pkg/virt-launcher/virtwrap/converter) writes for the same VMI. KubeVirt leaves PCI
// addresses to libvirt; here each device gets the Machine's, so that devices can be matched.
// emulator is the path of the QEMU.
func Of(m *qemuargs.Machine, emulator string) (Domain, error) {
	d := Domain{
		Type:    map[qemuargs.Accelerator]string{qemuargs.KVM: "kvm", qemuargs.TCG: "qemu"}[m.Accelerator],
		Name:    m.Name,
		UUID:    m.UUID,
		Memory:  Bytes{Unit: "b", Value: m.MemoryBytes},
		VCPU:    VCPU{Placement: "static", Count: m.CPU.Count()},
		Threads: len(m.IOThreads),
		Sysinfo: sysinfo(m),
		OS:      operatingSystem(m),
		CPU:     cpu(m.CPU),
		Clock:   clock(m),
	}
	if m.Memory != nil && len(m.NUMA) > 0 { // libvirt wants NUMA nodes for it
		d.MaxMemory = &MaxMemory{Slots: 1, Unit: "b", Value: m.Memory.MaxBytes}
	}
	if m.HugePageBytes != 0 {
		d.Backing = &Backing{Huge: &HugePages{[]Page{{Size: m.HugePageBytes, Unit: "b"}}}, Source: &Source{"memfd"}}
	}
	d.Backing = d.Backing.shared(m)
	for _, n := range m.NUMA {
		if d.CPU.NUMA == nil {
			d.CPU.NUMA = &NUMA{}
		}
		d.CPU.NUMA.Cells = append(d.CPU.NUMA.Cells, Cell{ID: n.ID, CPUs: fmt.Sprintf("%d-%d", n.FirstCPU, n.FirstCPU+n.CPUs-1), Memory: n.MemoryBytes, Unit: "b"})
	}
	if c := m.CPU; c.MaxSockets != 0 {
		d.VCPU.Current, d.VCPU.Count = c.Count(), int(c.MaxSockets*c.Cores*c.Threads)
		d.CPU.Topology.Sockets = c.MaxSockets
	}
	d.Features = &Features{}
	if m.Arch == qemuargs.ARM64 {
		d.Features.GIC = &GIC{string(m.GIC)}
	} else {
		d.Features.VMPort = &State{"off"}
	}
	if !m.NoACPI {
		d.Features.ACPI = &struct{}{}
	}
	if m.SMM != "" {
		d.Features.SMM = &State{string(m.SMM)}
	}
	d.Features.paravirtual(m.CPU.Flags)
	if m.EndOnReboot {
		d.OnReboot = "destroy"
	}
	var err error
	d.Devices, err = devices(m, emulator)
	return d, err
}

// XML is the domain as text.
func (d Domain) XML() ([]byte, error) {
	text, err := xml.MarshalIndent(d, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the domain %q as XML: %w", d.Name, err)
	}
	return append(text, '\n'), nil
}

func sysinfo(m *qemuargs.Machine) Sysinfo {
	s := Sysinfo{Type: "smbios"}
	if c := m.Chassis; c != nil {
		s.Chassis = &Strings{}
		for _, e := range []Entry{{"manufacturer", c.Manufacturer}, {"version", c.Version}, {"serial", c.Serial}, {"asset", c.Asset}, {"sku", c.SKU}} {
			if e.Value != "" {
				s.Chassis.Entries = append(s.Chassis.Entries, e)
			}
		}
	}
	for _, e := range []Entry{{"manufacturer", m.SMBIOS.Manufacturer}, {"product", m.SMBIOS.Product}, {"version", m.SMBIOS.Version}, {"serial", m.SMBIOS.Serial}, {"uuid", m.UUID},
		{"sku", m.SMBIOS.SKU}, {"family", m.SMBIOS.Family}} {
		if e.Value != "" {
			s.Entries = append(s.Entries, e)
		}
	}
	return s
}

func operatingSystem(m *qemuargs.Machine) OS {
	os := OS{Type: OSType{Arch: strings.TrimPrefix(m.Arch.Program(), "qemu-system-"), Machine: m.Type, Value: "hvm"}, SMBIOS: Mode{"sysinfo"}}
	if m.SerialBIOS {
		os.BIOS = &BIOS{"yes"}
	}
	if f := m.Firmware; f != nil {
		os.Loader = &Loader{ReadOnly: "yes", Secure: map[bool]string{true: "yes", false: "no"}[f.SecureBoot], Type: "pflash", Path: f.Code}
		os.NVRAM = f.Variables.Path
	}
	for _, t := range m.ACPITables {
		if t.Name == "SLIC" {
			os.Tables = append(os.Tables, Table{"slic", t.Path})
		}
	}
	if m.Kernel != nil {
		os.Kernel, os.Initrd, os.Args = m.Kernel.Path, m.Kernel.Initrd, m.Kernel.Args
	}
	return os
}

func cpu(c qemuargs.CPU) CPU {
	out := CPU{Topology: Topology{Sockets: c.Sockets, Cores: c.Cores, Threads: c.Threads}}
	switch c.Model {
	case "host":
		out.Mode = "host-passthrough"
	case "max":
		out.Mode = "maximum"
	default:
		out.Mode, out.Model = "custom", c.Model
	}
	return out
}

// clock has the timers of which the Machine says anything.
func clock(m *qemuargs.Machine) Clock {
	c := Clock{Offset: "utc", Adjustment: "reset"}
	if m.Clock.Offset != 0 {
		c.Offset, c.Basis, c.Adjustment = "variable", "utc", strconv.FormatInt(m.Clock.Offset, 10)
	}
	if m.Clock.RTCCatchUp || m.Clock.RTCSource != "" {
		t := Timer{Name: "rtc", Present: "yes", Track: map[string]string{"vm": "guest", "host": "wall"}[m.Clock.RTCSource]}
		if m.Clock.RTCCatchUp {
			t.TickPolicy = "catchup"
		}
		c.Timers = append(c.Timers, t)
	}
	if m.Clock.NoPIT {
		c.Timers = append(c.Timers, Timer{Name: "pit", Present: "no"})
	} else if m.Clock.PITPolicy != "" {
		c.Timers = append(c.Timers, Timer{Name: "pit", Present: "yes", TickPolicy: m.Clock.PITPolicy})
	}
	if m.Clock.NoHPET {
		c.Timers = append(c.Timers, Timer{Name: "hpet", Present: "no"})
	}
	for _, flag := range m.CPU.Flags {
		switch flag {
		case "kvmclock=off":
			c.Timers = append(c.Timers, Timer{Name: "kvmclock", Present: "no"})
		case "hv-time=on":
			c.Timers = append(c.Timers, Timer{Name: "hypervclock", Present: "yes"})
		}
	}
	return c
}

func devices(m *qemuargs.Machine, emulator string) (Devices, error) {
	d := Devices{Emulator: emulator, Controllers: controllers(m), Balloon: Balloon{Model: "none"}, TPM: tpm(m.TPM)}
	names := map[string]int{}
	for _, disk := range m.Disks {
		out, err := diskOf(disk, names)
		if err != nil {
			return d, err
		}
		d.Disks = append(d.Disks, out)
	}
	for _, f := range m.FileSystems {
		d.Filesystems = append(d.Filesystems, filesystem(f))
	}
	for i, nic := range m.NICs {
		if nic.HostDevice != "" {
			out, err := hostDeviceOf(nic)
			if err != nil {
				return d, err
			}
			d.HostDevices = append(d.HostDevices, out)
			continue
		}
		d.Interfaces = append(d.Interfaces, interfaceOf(nic, fmt.Sprintf("tap%d", i)))
	}
	if m.Serial != nil {
		target := "isa-serial"
		if m.Arch == qemuargs.ARM64 {
			target = "system-serial"
		}
		d.Serials = []Serial{{Type: "unix", Source: Socket{Mode: "bind", Path: "/run/kubeqemu/serial0"}, Target: SerialTarget{Type: target}}}
	}
	if m.Agent != nil {
		d.Channels = []Channel{{Type: "unix", Target: ChannelTarget{Type: "virtio", Name: qemuargs.AgentPort}}}
	}
	for _, in := range m.Inputs {
		d.Inputs = append(d.Inputs, inputOf(in))
	}
	if g := m.Graphics; g != nil {
		d.Graphics = []Graphics{{Type: "vnc", Listen: Listen{Type: "socket", Socket: g.Socket}}}
		d.Videos = []Video{{Model: video(g.Display), Address: pci(g.PCI)}}
	}
	if w := m.Watchdog; w != nil {
		d.Watchdogs = []Watchdog{{Model: "i6300esb", Action: w.Action, Address: pci(&w.PCI)}}
	}
	if b := m.Balloon; b != nil {
		d.Balloon = Balloon{Model: virtioModel(b.Transitional), Address: pci(&b.PCI)}
		if !b.NoReporting {
			d.Balloon.FreePageReporting = "on"
		}
	}
	if s := m.Sound; s != nil {
		d.Sounds = []Sound{{string(s.Model), pci(&s.PCI)}}
	}
	if m.PanicPort != nil {
		d.Panics = append(d.Panics, Panic{"isa"})
	}
	if slices.Contains(m.CPU.Flags, "hv-crash=on") {
		d.Panics = append(d.Panics, Panic{"hyperv"})
	}
	if r := m.RNG; r != nil {
		d.RNGs = []RNG{{Model: virtioModel(r.Transitional), Backend: Backend{Model: "random", Path: "/dev/urandom"}, Address: pci(&r.PCI)}}
	}
	return d, nil
}

// alias is the id that KubeVirt has libvirt give the device of a name.
func alias(name string) Alias { return Alias{"ua-" + name} }

// pci is a PCI address. libvirt numbers the buses as the Machine names them: pcie.0 is bus 0,
// and pci.3 bus 3.
func pci(a *qemuargs.PCIAddress) *Address {
	if a == nil {
		return nil
	}
	bus := "0"
	if n, ok := strings.CutPrefix(a.Bus, "pci."); ok {
		bus = n
	}
	out := &Address{Type: "pci", Domain: "0", Bus: bus, Slot: strconv.Itoa(int(a.Slot)), Function: strconv.Itoa(int(a.Function))}
	return out
}

func controllers(m *qemuargs.Machine) []Controller {
	out := []Controller{{Type: "pci", Model: "pcie-root"}}
	if m.NoPCIHole64 {
		out[0].Hole64 = &Bytes{Unit: "KiB"}
	}
	for i, p := range m.RootPorts {
		address := pci(&p.PCI)
		if p.PCI.Function == 0 {
			address.Multifunction = "on"
		}
		out = append(out, Controller{Type: "pci", Index: i + 1, Model: "pcie-root-port", Address: address,
			Target: &ControllerTarget{Chassis: p.Chassis, Port: p.PCI.Slot<<3 | p.PCI.Function}})
	}
	for i, c := range m.AHCI {
		address := pci(&c.PCI)
		if c.PCI.Function == 0 {
			address.Multifunction = "on"
		}
		out = append(out, Controller{Type: "sata", Index: i + 1, Address: address})
	}
	if m.SCSI != nil {
		scsi := Controller{Type: "scsi", Model: virtioModel(m.SCSI.Transitional), Address: pci(&m.SCSI.PCI)}
		if m.SCSI.IOThread != "" {
			scsi.Driver = &ControllerDriver{IOThread: threadNumber(m.SCSI.IOThread)}
		}
		out = append(out, scsi)
	}
	if m.USB != nil {
		out = append(out, Controller{Type: "usb", Model: "qemu-xhci", Ports: m.USB.Ports, Address: pci(&m.USB.PCI)})
	} else {
		out = append(out, Controller{Type: "usb", Model: "none"})
	}
	if m.Agent != nil {
		out = append(out, Controller{Type: "virtio-serial", Model: virtioModel(m.Agent.Transitional), Address: pci(&m.Agent.PCI)})
	}
	return out
}

// diskOf is a disk; names counts the disks of each kind of name.
func diskOf(d qemuargs.Disk, names map[string]int) (Disk, error) {
	out := Disk{Type: "file", Device: "disk", Serial: d.Serial, Alias: alias(d.Name), Source: DiskSource{File: d.Image.Path},
		Driver: DiskDriver{Name: "qemu", Type: string(d.Image.Format), ErrorPolicy: "stop", Discard: "unmap"}}
	tuning(d, &out)
	prefix := ""
	switch {
	case d.PCI != nil:
		out.Model, out.Address = virtioModel(d.Driver == qemuargs.VirtioBlkTransitional), pci(d.PCI)
		out.Target.Bus, prefix = "virtio", "vd"
	case d.LUN != nil:
		out.Address = &Address{Type: "drive", Controller: "0", Bus: "0", Target: "0", Unit: strconv.Itoa(*d.LUN)}
		out.Target.Bus, prefix = "scsi", "sd"
	case d.USBPort > 0:
		out.Address = &Address{Type: "usb", Bus: "0", Port: strconv.Itoa(d.USBPort)}
		out.Target.Bus, prefix = "usb", "sd"
	default:
		controller, port, err := sataPort(d.Bus)
		if err != nil {
			return out, err
		}
		out.Address = &Address{Type: "drive", Controller: strconv.Itoa(controller), Bus: "0", Target: "0", Unit: strconv.Itoa(port)}
		out.Target.Bus, prefix = "sata", "sd"
	}
	out.Target.Dev = diskName(prefix, names[prefix])
	names[prefix]++
	if d.Driver == qemuargs.IDECD || d.Driver == qemuargs.SCSICD {
		out.Device, out.Driver.Discard = "cdrom", ""
	}
	if d.Driver == qemuargs.SCSIBlock {
		out.Device = "lun"
	}
	if d.ReadOnly {
		out.ReadOnly = &struct{}{}
	}
	if d.BootIndex > 0 {
		out.Boot = &Boot{d.BootIndex}
	}
	image(d, &out)
	return out, nil
}

// tuning is how a disk's data is read and written.
func tuning(d qemuargs.Disk, out *Disk) {
	if d.OnError != qemuargs.Stop {
		out.Driver.ErrorPolicy = map[qemuargs.OnError]string{qemuargs.Ignore: "ignore", qemuargs.Report: "report", qemuargs.StopIfFull: "enospace"}[d.OnError]
	}
	out.Driver.IO, out.Driver.IOThread = string(d.AIO), threadNumber(d.IOThread)
	if b := d.Blocks; b != nil {
		out.BlockIO = &BlockIO{b.Logical, b.Physical, b.DiscardGranularity}
	}
	if d.Shared {
		out.Shared = &struct{}{}
	}
}

// threadNumber is libvirt's number of a thread.
func threadNumber(id string) string { return strings.TrimPrefix(id, "iothread") }

// image is the file or device behind a disk. KubeVirt opens it with O_DIRECT where that works
// for all files, and else has each write reach the disk.
func image(d qemuargs.Disk, out *Disk) {
	direct := d.Image.Direct
	if d.Image.Volume == qemuargs.BlockVolume {
		out.Type, out.Source = "block", DiskSource{Dev: d.Image.Path}
	}
	if d.Overlay != nil {
		direct = direct && d.Overlay.Direct
		source := out.Source
		out.Backing = &BackingStore{Type: out.Type, Format: &Format{string(d.Image.Format)}, Source: &source, Backing: &BackingStore{}}
		out.Type, out.Source, out.Driver.Type = "file", DiskSource{File: d.Overlay.Path}, string(qemuargs.QCOW2)
	} else {
		out.Backing = &BackingStore{}
	}
	switch {
	case direct:
		out.Driver.Cache = "none"
	case d.WriteThrough:
		out.Driver.Cache = "writethrough"
	default:
		out.Driver.Cache = "writeback"
	}
	if direct && out.Source.Dev != "" && d.AIO == "" {
		out.Driver.IO = string(qemuargs.Native)
	}
}

// sataPort reads a bus such as ide.2 or ahci1.3.
func sataPort(bus string) (controller, port int, err error) {
	name, number, _ := strings.Cut(bus, ".")
	if index, ok := strings.CutPrefix(name, "ahci"); ok {
		if controller, err = strconv.Atoi(index); err != nil {
			return 0, 0, fmt.Errorf("read the SATA bus %q: %w", bus, err)
		}
	}
	if port, err = strconv.Atoi(number); err != nil {
		return 0, 0, fmt.Errorf("read the SATA bus %q: %w", bus, err)
	}
	return controller, port, nil
}

// diskName is Linux' name of the n-th disk, from 0.
func diskName(prefix string, n int) string {
	name := ""
	for ; n >= 0; n = n/26 - 1 {
		name = string(rune('a'+n%26)) + name
	}
	return prefix + name
}

func interfaceOf(n qemuargs.NIC, tap string) Interface {
	out := Interface{Type: "ethernet", MAC: MAC{n.MAC}, Target: InterfaceTarget{Dev: tap, Managed: "no"}, Model: Model{n.Driver}, Alias: alias(n.Name), Address: pci(&n.PCI)}
	if n.IsVirtio() {
		out.Model.Type = virtioModel(n.Driver == "virtio-net-pci-transitional")
	}
	if n.Queues > 1 {
		out.Driver = &InterfaceDriver{Name: "vhost", Queues: n.Queues}
	}
	if n.ACPIIndex > 0 {
		out.ACPI = &ACPIIndex{n.ACPIIndex}
	}
	if n.MTU > 0 {
		out.MTU = &MTU{n.MTU}
	}
	if n.BootIndex > 0 {
		out.Boot = &Boot{n.BootIndex}
	} else {
		out.ROM = &ROM{"no"}
	}
	return out
}

// hostDeviceOf is a network card of the node. KubeVirt describes such a card as any device of the node, without its MAC.
func hostDeviceOf(n qemuargs.NIC) (HostDevice, error) {
	place := strings.FieldsFunc(n.HostDevice, func(r rune) bool { return r == ':' || r == '.' })
	if len(place) != 4 {
		return HostDevice{}, fmt.Errorf("read the place of interface %q on the node: %q is no PCI address", n.Name, n.HostDevice)
	}
	out := HostDevice{Mode: "subsystem", Type: "pci", Managed: "no", Alias: alias(n.Name), Address: pci(&n.PCI),
		Source: HostSource{HostAddress{Domain: "0x" + place[0], Bus: "0x" + place[1], Slot: "0x" + place[2], Function: "0x" + place[3]}}}
	if n.ACPIIndex > 0 {
		out.ACPI = &ACPIIndex{n.ACPIIndex}
	}
	if n.BootIndex > 0 {
		out.Boot = &Boot{n.BootIndex}
	} else {
		out.ROM = &ROM{"no"}
	}
	return out, nil
}

func inputOf(in qemuargs.Input) Input {
	kind := "tablet"
	if in.Keyboard {
		kind = "keyboard"
	}
	if in.PCI != nil {
		return Input{Type: kind, Bus: "virtio", Model: "virtio", Alias: alias(in.Name), Address: pci(in.PCI)}
	}
	return Input{Type: kind, Bus: "usb", Alias: alias(in.Name), Address: &Address{Type: "usb", Bus: "0", Port: strconv.Itoa(in.Port)}}
}

func video(d qemuargs.Display) VideoModel {
	const vram = 16384 // KiB, KubeVirt's
	model := map[qemuargs.Display]string{qemuargs.VGA: "vga", qemuargs.VirtioVGA: "virtio", qemuargs.VirtioGPU: "virtio", qemuargs.Bochs: "bochs", qemuargs.RAMFB: "ramfb"}[d]
	return VideoModel{Type: model, Heads: 1, VRAM: vram}
}
