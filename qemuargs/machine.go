// Package qemuargs turns a Machine, plain data in which everything is decided,
// into the arguments of qemu-system-x86_64 or qemu-system-aarch64. It is pure: it looks up nothing,
// opens nothing, and the same Machine always gives the same arguments.
//
// A later live migration replays the Machine on its target. So from the start a Machine holds
// an explicit PCI address for every device, and a versioned machine type. It also holds
// everything that the guest could see and that QEMU would otherwise choose by the number of its
// CPUs, by its host's kernel or by its own version. QEMU 7.2, 10.0 and 11.1 accept the
// arguments. What only machines of amd64 have is in q35.go, and what only
// those of arm64 have in virt.go.
package qemuargs

// Version is the version of the Machine format. It rises when a Machine of an
// older version would be rendered to other arguments.
const Version = 1

// Accelerator is what runs the guest's CPUs (QEMU -accel).
type Accelerator string

// Accelerators.
const (
	KVM Accelerator = "kvm"
	TCG Accelerator = "tcg"
)

// Arch is the processor architecture of a guest, by Kubernetes' name.
type Arch string

// Architectures that arguments are made for.
const (
	AMD64 Arch = "amd64"
	ARM64 Arch = "arm64"
)

// Program returns the QEMU of an architecture.
func (a Arch) Program() string {
	if a == ARM64 {
		return "qemu-system-aarch64"
	}
	return "qemu-system-x86_64"
}

// Machine is one virtual machine, fully resolved.
type Machine struct {
	Version int    `json:"version"`
	Arch    Arch   `json:"arch"`
	Name    string `json:"name"` // <namespace>_<name>, for process lists and logs
	UUID    string `json:"uuid"`
	// Type is a versioned machine type such as pc-q35-7.2 or virt-11.1.
	Type        string      `json:"type"`
	Accelerator Accelerator `json:"accelerator"`
	// GIC is the interrupt controller of a machine of arm64.
	GIC GIC `json:"gic,omitempty"`
	// MonitorObject makes the monitor an object, as QEMU 11.1 wants it. It depends on QEMU's
	// version, and the guest does not see it: a migration's target has its own.
	MonitorObject bool `json:"monitorObject,omitempty"`
	// SATA keeps the chipset's SATA controller, whose six buses take 1.6 MB of QEMU.
	SATA bool `json:"sata,omitempty"`
	// PS2 keeps the controller of keyboard and mouse, 0.1 MB.
	PS2 bool `json:"ps2,omitempty"`
	// NoACPI leaves the guest without ACPI tables, and so without a power button.
	NoACPI bool `json:"noACPI,omitempty"`
	// SerialBIOS lets SeaBIOS write to the serial port too.
	SerialBIOS bool `json:"serialBIOS,omitempty"`
	// Firmware is UEFI. A machine without Firmware has SeaBIOS.
	Firmware *Firmware `json:"firmware,omitempty"`
	// SMM is the CPUs' system management mode. QEMU's own choice depends on the accelerator and the host's kernel.
	SMM   Switch `json:"smm,omitempty"`
	Clock Clock  `json:"clock,omitzero"`
	CPU   CPU    `json:"cpu"`
	// MemoryBytes is the guest's RAM, a multiple of 1 MiB.
	MemoryBytes int64 `json:"memoryBytes"`
	// HugePageBytes is the size of the node's huge pages that are the guest's memory; 0 for pages of the usual size.
	HugePageBytes int64 `json:"hugePageBytes,omitempty"`
	// PreallocMemory: QEMU takes all of a guest's memory that it shares with other programs at its start.
	PreallocMemory bool `json:"preallocMemory,omitempty"`
	// NUMA are the guest's NUMA nodes, with all of its memory; none for a guest that sees no nodes.
	NUMA []NUMANode `json:"numa,omitempty"`
	// Memory, if set, has places for more memory.
	Memory  *MemoryPlaces `json:"memory,omitempty"`
	SMBIOS  SMBIOS        `json:"smbios"`
	Chassis *Chassis      `json:"chassis,omitempty"`
	// NoPCIHole64 leaves the machine without a window for PCI devices above 4 GiB.
	NoPCIHole64 bool `json:"noPCIHole64,omitempty"`
	// ACPITables are those that the guest finds beside QEMU's own.
	ACPITables []ACPITable `json:"acpiTables,omitempty"`
	// EndOnReboot: a reboot of the guest ends QEMU, as a power-off does.
	EndOnReboot bool         `json:"endOnReboot,omitempty"`
	Kernel      *Kernel      `json:"kernel,omitempty"`
	IOThreads   []IOThread   `json:"ioThreads,omitempty"`
	RootPorts   []RootPort   `json:"rootPorts,omitempty"`
	AHCI        []AHCI       `json:"ahci,omitempty"`
	SCSI        *SCSI        `json:"scsi,omitempty"`
	USB         *USB         `json:"usb,omitempty"`
	NICs        []NIC        `json:"nics,omitempty"`
	Disks       []Disk       `json:"disks,omitempty"`
	FileSystems []FileSystem `json:"fileSystems,omitempty"`
	RNG         *RNG         `json:"rng,omitempty"`
	Balloon     *Balloon     `json:"balloon,omitempty"`
	Watchdog    *Watchdog    `json:"watchdog,omitempty"`
	// PanicPort and PanicCard are where the guest's kernel says that it has panicked.
	PanicPort *PanicPort      `json:"panicPort,omitempty"`
	PanicCard *PanicCard      `json:"panicCard,omitempty"`
	Sound     *Sound          `json:"sound,omitempty"`
	Inputs    []Input         `json:"inputs,omitempty"`
	Serial    *Serial         `json:"serial,omitempty"`
	Graphics  *Graphics       `json:"graphics,omitempty"`
	Agent     *Agent          `json:"agent,omitempty"`
	TPM       *TPM            `json:"tpm,omitempty"`
	Boot      BootRestriction `json:"boot,omitempty"`
}

// BootRestriction says which devices the firmware may try.
type BootRestriction string

// BootStrict lets the firmware try only devices with a boot index (QEMU -boot strict=on).
const BootStrict BootRestriction = "strict"

// CPU is model and topology. Sockets, Cores and Threads are those that the guest begins with.
// Queues are counted by them, whatever is plugged later.
type CPU struct {
	Model   string `json:"model"`
	Sockets uint32 `json:"sockets"`
	Cores   uint32 `json:"cores"`
	Threads uint32 `json:"threads"`
	// Flags are added to the model, such as kvmclock=off.
	Flags []string `json:"flags,omitempty"`
	// Required are features without which the guest must not run. QEMU only warns of those that its host lacks.
	Required []string `json:"required,omitempty"`
	// MaxSockets, of Cores and Threads each, is how many sockets the machine can have; 0 means
	// no more than Sockets.
	MaxSockets uint32 `json:"maxSockets,omitempty"`
	// Plugged are the CPUs that were plugged since the guest began.
	Plugged []PluggedCPU `json:"plugged,omitempty"`
}

// Count returns the number of virtual CPUs.
func (c CPU) Count() int { return int(c.Sockets) * int(c.Cores) * int(c.Threads) }
