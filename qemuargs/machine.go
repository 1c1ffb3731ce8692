// Package qemuargs turns a Machine, plain data in which everything is decided,
// into the arguments of qemu-system-x86_64. It is pure: it looks up nothing,
// opens nothing, and the same Machine always gives the same arguments.
//
// A Machine is also what a later live migration replays on its target, and so
// holds an explicit PCI address for every device and a versioned machine type
// from the start. QEMU 7.2 and newer accept what is emitted.
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

// Machine is one virtual machine, fully resolved.
type Machine struct {
	Version int    `json:"version"`
	Name    string `json:"name"` // <namespace>_<name>, for process lists and logs
	UUID    string `json:"uuid"`
	// Type is a versioned machine type such as pc-q35-7.2.
	Type        string      `json:"type"`
	Accelerator Accelerator `json:"accelerator"`
	// NoACPI leaves the guest without ACPI tables, and so without a power button.
	NoACPI bool `json:"noACPI,omitempty"`
	CPU    CPU  `json:"cpu"`
	// MemoryBytes is the guest's RAM, a multiple of 1 MiB.
	MemoryBytes int64           `json:"memoryBytes"`
	SMBIOS      SMBIOS          `json:"smbios"`
	RootPorts   []RootPort      `json:"rootPorts,omitempty"`
	AHCI        []AHCI          `json:"ahci,omitempty"`
	NICs        []NIC           `json:"nics,omitempty"`
	Disks       []Disk          `json:"disks,omitempty"`
	RNG         *RNG            `json:"rng,omitempty"`
	Serial      *Serial         `json:"serial,omitempty"`
	Graphics    *Graphics       `json:"graphics,omitempty"`
	Boot        BootRestriction `json:"boot,omitempty"`
}

// BootRestriction says which devices the firmware may try.
type BootRestriction string

// BootStrict lets the firmware try only devices with a boot index (QEMU -boot strict=on).
const BootStrict BootRestriction = "strict"

// CPU is model and topology.
type CPU struct {
	Model   string `json:"model"`
	Sockets uint32 `json:"sockets"`
	Cores   uint32 `json:"cores"`
	Threads uint32 `json:"threads"`
}

// SMBIOS holds the strings of SMBIOS structure type 1 (System).
type SMBIOS struct {
	Manufacturer string `json:"manufacturer,omitempty"`
	Product      string `json:"product,omitempty"`
	Family       string `json:"family,omitempty"`
	Serial       string `json:"serial,omitempty"`
}

// RNG is a virtio random number generator fed from /dev/urandom.
type RNG struct {
	PCI PCIAddress `json:"pci"`
}

// Serial is the first serial port; the launcher is at its other end.
type Serial struct{}

// Graphics is a VGA card shown over VNC on a unix socket.
type Graphics struct {
	PCI    PCIAddress `json:"pci"`
	Socket string     `json:"socket"`
}
