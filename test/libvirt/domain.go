// Package libvirt compares QEMU's arguments with those that libvirt makes for the same machine.
// Domain describes a Machine to libvirt, as KubeVirt would; the test asks libvirt for its
// arguments, and each difference must stand in a reviewed list. "make libvirt-diff" runs it.
package libvirt

import "encoding/xml"

// Domain is libvirt's description of a machine (https://libvirt.org/formatdomain.html), as far
// as a Machine needs it.
type Domain struct {
	XMLName   xml.Name   `xml:"domain"`
	Type      string     `xml:"type,attr"`
	Name      string     `xml:"name"`
	UUID      string     `xml:"uuid"`
	MaxMemory *MaxMemory `xml:"maxMemory"`
	Memory    Bytes      `xml:"memory"`
	Backing   *Backing   `xml:"memoryBacking"`
	VCPU      VCPU       `xml:"vcpu"`
	Threads   int        `xml:"iothreads,omitempty"`
	Sysinfo   Sysinfo    `xml:"sysinfo"`
	OS        OS         `xml:"os"`
	Features  *Features  `xml:"features"`
	CPU       CPU        `xml:"cpu"`
	Clock     Clock      `xml:"clock"`
	OnReboot  string     `xml:"on_reboot,omitempty"`
	Devices   Devices    `xml:"devices"`
}

// Bytes is an amount of memory.
type Bytes struct {
	Unit  string `xml:"unit,attr"` // always b
	Value int64  `xml:",chardata"`
}

// MaxMemory is how much the guest can have.
type MaxMemory struct {
	Slots int    `xml:"slots,attr"` // libvirt wants at least one
	Unit  string `xml:"unit,attr"`  // always b
	Value int64  `xml:",chardata"`
}

// Backing is what the guest's memory is of.
type Backing struct {
	Huge       *HugePages `xml:"hugepages"`
	Source     *Source    `xml:"source"`
	Access     *Mode      `xml:"access"`
	Allocation *Mode      `xml:"allocation"`
}

// HugePages are the sizes of huge pages.
type HugePages struct {
	Pages []Page `xml:"page"`
}

// Page is the size of huge pages.
type Page struct {
	Size int64  `xml:"size,attr"`
	Unit string `xml:"unit,attr"` // always b
}

// Source is the kind of memory.
type Source struct {
	Type string `xml:"type,attr"`
}

// VCPU is the number of virtual CPUs: the most that the guest can have, and those that it begins with.
type VCPU struct {
	Placement string `xml:"placement,attr"`
	Current   int    `xml:"current,attr,omitempty"`
	Count     int    `xml:",chardata"`
}

// Sysinfo holds the strings of SMBIOS structure type 1.
type Sysinfo struct {
	Type    string   `xml:"type,attr"`
	Entries []Entry  `xml:"system>entry"`
	Chassis *Strings `xml:"chassis"` // of type 3
}

// Strings are those of another structure.
type Strings struct {
	Entries []Entry `xml:"entry"`
}

// Entry is one such string.
type Entry struct {
	Name  string `xml:"name,attr"`
	Value string `xml:",chardata"`
}

// OS is the board, and what is booted.
type OS struct {
	Type   OSType  `xml:"type"`
	Loader *Loader `xml:"loader"`
	NVRAM  string  `xml:"nvram,omitempty"`
	BIOS   *BIOS   `xml:"bios"`
	SMBIOS Mode    `xml:"smbios"`
	Kernel string  `xml:"kernel,omitempty"`
	Initrd string  `xml:"initrd,omitempty"`
	Args   string  `xml:"cmdline,omitempty"`
	// Tables of ACPI.
	Tables []Table `xml:"acpi>table"`
}

// Table is an ACPI table in a file; libvirt 9.0 knows slic alone.
type Table struct {
	Type string `xml:"type,attr"`
	Path string `xml:",chardata"`
}

// GIC is the interrupt controller of a machine of arm64.
type GIC struct {
	Version string `xml:"version,attr"`
}

// OSType is the machine type.
type OSType struct {
	Arch    string `xml:"arch,attr"`
	Machine string `xml:"machine,attr"`
	Value   string `xml:",chardata"` // always hvm
}

// Loader is UEFI's code.
type Loader struct {
	ReadOnly string `xml:"readonly,attr"`
	Secure   string `xml:"secure,attr"`
	Type     string `xml:"type,attr"`
	Path     string `xml:",chardata"`
}

// BIOS says where SeaBIOS writes to.
type BIOS struct {
	UseSerial string `xml:"useserial,attr"`
}

// Mode is an element with a mode alone.
type Mode struct {
	Mode string `xml:"mode,attr"`
}

// State is a switch, on or off.
type State struct {
	State string `xml:"state,attr"`
}

// Features of the board.
type Features struct {
	ACPI       *struct{} `xml:"acpi"`
	APIC       *APIC     `xml:"apic"`
	GIC        *GIC      `xml:"gic"`
	HyperV     *HyperV   `xml:"hyperv"`
	KVM        *KVM      `xml:"kvm"`
	PVSpinlock *State    `xml:"pvspinlock"`
	PMU        *State    `xml:"pmu"`
	SMM        *State    `xml:"smm"`
	VMPort     *State    `xml:"vmport"`
}

// CPU is model and topology.
type CPU struct {
	Mode     string       `xml:"mode,attr"`
	Model    string       `xml:"model,omitempty"`
	Topology Topology     `xml:"topology"`
	NUMA     *NUMA        `xml:"numa"`
	Features []CPUFeature `xml:"feature"`
}

// CPUFeature is a feature beside the model's.
type CPUFeature struct {
	Policy string `xml:"policy,attr"`
	Name   string `xml:"name,attr"`
}

// NUMA are the guest's NUMA nodes.
type NUMA struct {
	Cells []Cell `xml:"cell"`
}

// Cell is a NUMA node.
type Cell struct {
	ID     string `xml:"id,attr"`
	CPUs   string `xml:"cpus,attr"`
	Memory int64  `xml:"memory,attr"`
	Unit   string `xml:"unit,attr"` // always b
}

// Topology is the CPUs' arrangement.
type Topology struct {
	Sockets uint32 `xml:"sockets,attr"`
	Cores   uint32 `xml:"cores,attr"`
	Threads uint32 `xml:"threads,attr"`
}

// Clock is the guest's clock and its timers.
type Clock struct {
	Offset     string  `xml:"offset,attr"`
	Adjustment string  `xml:"adjustment,attr,omitempty"`
	Basis      string  `xml:"basis,attr,omitempty"`
	Timers     []Timer `xml:"timer"`
}

// Timer is one of the guest's timers.
type Timer struct {
	Name       string `xml:"name,attr"`
	TickPolicy string `xml:"tickpolicy,attr,omitempty"`
	Track      string `xml:"track,attr,omitempty"`
	Present    string `xml:"present,attr,omitempty"`
}

// Devices of the machine.
type Devices struct {
	Emulator    string       `xml:"emulator"`
	Disks       []Disk       `xml:"disk"`
	Controllers []Controller `xml:"controller"`
	Interfaces  []Interface  `xml:"interface"`
	HostDevices []HostDevice `xml:"hostdev"`
	Serials     []Serial     `xml:"serial"`
	Channels    []Channel    `xml:"channel"`
	Inputs      []Input      `xml:"input"`
	Graphics    []Graphics   `xml:"graphics"`
	Videos      []Video      `xml:"video"`
	Watchdogs   []Watchdog   `xml:"watchdog"`
	Balloon     Balloon      `xml:"memballoon"`
	RNGs        []RNG        `xml:"rng"`
	TPM         *TPM         `xml:"tpm"`
	Filesystems []Filesystem `xml:"filesystem"`
	Sounds      []Sound      `xml:"sound"`
	Panics      []Panic      `xml:"panic"`
}

// Sound is a sound card.
type Sound struct {
	Model   string   `xml:"model,attr"`
	Address *Address `xml:"address"`
}

// Panic is a panic device; libvirt 9.0 knows isa and hyperv of those that Kubeqemu has.
type Panic struct {
	Model string `xml:"model,attr"`
}

// Address is a device's place: a PCI address, or a drive's or a USB device's port.
type Address struct {
	Type          string `xml:"type,attr"`
	Domain        string `xml:"domain,attr,omitempty"`
	Bus           string `xml:"bus,attr,omitempty"`
	Slot          string `xml:"slot,attr,omitempty"`
	Function      string `xml:"function,attr,omitempty"`
	Multifunction string `xml:"multifunction,attr,omitempty"`
	Controller    string `xml:"controller,attr,omitempty"`
	Target        string `xml:"target,attr,omitempty"`
	Unit          string `xml:"unit,attr,omitempty"`
	Port          string `xml:"port,attr,omitempty"`
}

// Disk is a disk or CD-ROM.
type Disk struct {
	Type     string        `xml:"type,attr"`
	Device   string        `xml:"device,attr"`
	Model    string        `xml:"model,attr,omitempty"`
	Driver   DiskDriver    `xml:"driver"`
	Source   DiskSource    `xml:"source"`
	Backing  *BackingStore `xml:"backingStore"`
	Target   DiskTarget    `xml:"target"`
	ReadOnly *struct{}     `xml:"readonly"`
	Shared   *struct{}     `xml:"shareable"`
	BlockIO  *BlockIO      `xml:"blockio"`
	Serial   string        `xml:"serial,omitempty"`
	Boot     *Boot         `xml:"boot"`
	Alias    Alias         `xml:"alias"`
	Address  *Address      `xml:"address"`
}

// BlockIO has the sizes of a disk's blocks, in bytes.
type BlockIO struct {
	Logical  uint32  `xml:"logical_block_size,attr"`
	Physical uint32  `xml:"physical_block_size,attr"`
	Discard  *uint32 `xml:"discard_granularity,attr"`
}

// Alias is a device's id.
type Alias struct {
	Name string `xml:"name,attr"`
}

// DiskDriver says how QEMU reads and writes.
type DiskDriver struct {
	Name        string `xml:"name,attr"`
	Type        string `xml:"type,attr"`
	Cache       string `xml:"cache,attr,omitempty"`
	ErrorPolicy string `xml:"error_policy,attr,omitempty"`
	Discard     string `xml:"discard,attr,omitempty"`
	IO          string `xml:"io,attr,omitempty"`
	Queues      int    `xml:"queues,attr,omitempty"`
	IOThread    string `xml:"iothread,attr,omitempty"`
}

// DiskSource is a file or a block device.
type DiskSource struct {
	File string `xml:"file,attr,omitempty"`
	Dev  string `xml:"dev,attr,omitempty"`
}

// BackingStore is what lies below an image; empty for nothing.
type BackingStore struct {
	Type    string        `xml:"type,attr,omitempty"`
	Format  *Format       `xml:"format"`
	Source  *DiskSource   `xml:"source"`
	Backing *BackingStore `xml:"backingStore"`
}

// Format of an image.
type Format struct {
	Type string `xml:"type,attr"`
}

// DiskTarget is the disk's name, and its bus.
type DiskTarget struct {
	Dev string `xml:"dev,attr"`
	Bus string `xml:"bus,attr"`
}

// Boot is the place in the boot order.
type Boot struct {
	Order uint32 `xml:"order,attr"`
}

// Controller is a bus: PCI, SATA, SCSI, USB or virtio serial.
type Controller struct {
	Type    string            `xml:"type,attr"`
	Index   int               `xml:"index,attr"`
	Model   string            `xml:"model,attr,omitempty"`
	Ports   int               `xml:"ports,attr,omitempty"`
	Target  *ControllerTarget `xml:"target"`
	Hole64  *Bytes            `xml:"pcihole64"`
	Driver  *ControllerDriver `xml:"driver"`
	Address *Address          `xml:"address"`
}

// ControllerTarget is where a root port says that it is.
type ControllerTarget struct {
	Chassis uint8 `xml:"chassis,attr"`
	Port    uint8 `xml:"port,attr"`
}

// ControllerDriver has a controller's queues.
type ControllerDriver struct {
	Queues   int    `xml:"queues,attr,omitempty"`
	IOThread string `xml:"iothread,attr,omitempty"`
}

// Interface is a network card on a tap.
type Interface struct {
	Type    string           `xml:"type,attr"`
	MAC     MAC              `xml:"mac"`
	Target  InterfaceTarget  `xml:"target"`
	Model   Model            `xml:"model"`
	Driver  *InterfaceDriver `xml:"driver"`
	MTU     *MTU             `xml:"mtu"`
	Boot    *Boot            `xml:"boot"`
	ROM     *ROM             `xml:"rom"`
	ACPI    *ACPIIndex       `xml:"acpi"`
	Alias   Alias            `xml:"alias"`
	Address *Address         `xml:"address"`
}

// HostDevice is a device of the node, which VFIO gives to the guest.
type HostDevice struct {
	Mode    string     `xml:"mode,attr"`
	Type    string     `xml:"type,attr"`
	Managed string     `xml:"managed,attr"`
	Source  HostSource `xml:"source"`
	Boot    *Boot      `xml:"boot"`
	ROM     *ROM       `xml:"rom"`
	ACPI    *ACPIIndex `xml:"acpi"`
	Alias   Alias      `xml:"alias"`
	Address *Address   `xml:"address"`
}

// HostSource is the place of a device on the node.
type HostSource struct {
	Address HostAddress `xml:"address"`
}

// HostAddress is a PCI address on the node.
type HostAddress struct {
	Domain   string `xml:"domain,attr"`
	Bus      string `xml:"bus,attr"`
	Slot     string `xml:"slot,attr"`
	Function string `xml:"function,attr"`
}

// ACPIIndex is the number of a card.
type ACPIIndex struct {
	Index int `xml:"index,attr"`
}

// MAC is a card's hardware address.
type MAC struct {
	Address string `xml:"address,attr"`
}

// InterfaceTarget is the tap.
type InterfaceTarget struct {
	Dev     string `xml:"dev,attr"`
	Managed string `xml:"managed,attr"`
}

// Model is an element with a type alone.
type Model struct {
	Type string `xml:"type,attr"`
}

// InterfaceDriver is where packets are moved, and the card's queues.
type InterfaceDriver struct {
	Name   string `xml:"name,attr"`
	Queues int    `xml:"queues,attr,omitempty"`
}

// MTU in bytes.
type MTU struct {
	Size int `xml:"size,attr"`
}

// ROM is a card's option ROM.
type ROM struct {
	Enabled string `xml:"enabled,attr"`
}

// Socket is a unix socket.
type Socket struct {
	Mode string `xml:"mode,attr"`
	Path string `xml:"path,attr"`
}

// Serial is a serial port.
type Serial struct {
	Type   string       `xml:"type,attr"`
	Source Socket       `xml:"source"`
	Target SerialTarget `xml:"target"`
}

// SerialTarget is the port.
type SerialTarget struct {
	Type string `xml:"type,attr"`
	Port int    `xml:"port,attr"`
}

// Channel is a port of a virtio serial controller. libvirt makes its socket.
type Channel struct {
	Type    string        `xml:"type,attr"`
	Target  ChannelTarget `xml:"target"`
	Address *Address      `xml:"address"`
}

// ChannelTarget is the port's name in the guest.
type ChannelTarget struct {
	Type string `xml:"type,attr"`
	Name string `xml:"name,attr"`
}
