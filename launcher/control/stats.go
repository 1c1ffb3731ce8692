package control

// Stats answers CommandStats: what a VM has used and done since QEMU was started. Times are in
// nanoseconds, memory and traffic in bytes. Values that could not be learned are left out.
type Stats struct {
	CPU   *CPUStats   `json:"cpu,omitempty"`
	VCPUs []VCPUStats `json:"vcpus,omitempty"` // by index
	// Resident is the memory of QEMU's process that is in RAM.
	Resident uint64 `json:"resident,omitempty"`
	// Own is the memory of the VM's processes besides the guest's; nil if the kernel does not tell.
	Own     *OwnMemory   `json:"own,omitempty"`
	Balloon *uint64      `json:"balloon,omitempty"` // the memory that the balloon leaves to the guest
	Guest   *GuestMemory `json:"guest,omitempty"`
	Disks   []DiskStats  `json:"disks,omitempty"`
	NICs    []NICStats   `json:"nics,omitempty"`
}

// CPUStats is the CPU time of QEMU's process: that of the virtual CPUs and QEMU's own.
type CPUStats struct {
	User   uint64 `json:"user"`
	System uint64 `json:"system"`
}

// OwnMemory is memory in RAM that belongs to a VM's processes alone, without the guest's memory, in bytes.
type OwnMemory struct {
	QEMU     uint64 `json:"qemu"`
	Launcher uint64 `json:"launcher"` // with its helpers, such as a TPM's emulator
}

// VCPUStats says how the host's scheduler treated the thread of a virtual CPU.
type VCPUStats struct {
	Time  uint64 `json:"time"`  // how long the thread ran
	Delay uint64 `json:"delay"` // how long it could have run while other threads ran
	// Wait is how long the thread waited, as the scheduler counts it; only where the kernel
	// keeps such statistics (kernel.sched_schedstats).
	Wait *uint64 `json:"wait,omitempty"`
}

// GuestMemory is what the guest's balloon driver says of its memory. Guests leave out values
// that they do not count.
type GuestMemory struct {
	Available   *uint64 `json:"available,omitempty"` // all that the guest knows of
	Unused      *uint64 `json:"unused,omitempty"`    // used for nothing
	Usable      *uint64 `json:"usable,omitempty"`    // the guest could give it away without swapping
	Cached      *uint64 `json:"cached,omitempty"`
	SwapIn      *uint64 `json:"swapIn,omitempty"`
	SwapOut     *uint64 `json:"swapOut,omitempty"`
	MajorFaults *uint64 `json:"majorFaults,omitempty"`
	MinorFaults *uint64 `json:"minorFaults,omitempty"`
}

// DiskStats is what the guest did with a disk.
type DiskStats struct {
	Name  string  `json:"name"` // in the Machine
	Read  IOStats `json:"read"`
	Write IOStats `json:"write"`
	Flush IOStats `json:"flush"` // has no bytes
}

// IOStats counts operations of one kind.
type IOStats struct {
	Operations uint64 `json:"operations"`
	Bytes      uint64 `json:"bytes,omitempty"`
	Time       uint64 `json:"time"`
}

// NICStats is a network card's traffic, as the guest sees it.
type NICStats struct {
	Name     string       `json:"name"` // in the Machine
	Receive  TrafficStats `json:"receive"`
	Transmit TrafficStats `json:"transmit"`
}

// TrafficStats counts packets of one direction.
type TrafficStats struct {
	Bytes   uint64 `json:"bytes"`
	Packets uint64 `json:"packets"`
	Errors  uint64 `json:"errors"`
	Dropped uint64 `json:"dropped"`
}
