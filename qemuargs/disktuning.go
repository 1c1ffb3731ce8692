package qemuargs

// AIO is how QEMU reads and writes an image (-blockdev aio). The guest cannot tell. Empty is QEMU's default, Threads.
type AIO string

// I/O modes.
const (
	// Threads of QEMU's own pool.
	Threads AIO = "threads"
	// Native is Linux' asynchronous I/O. It needs O_DIRECT.
	Native AIO = "native"
	// IOURing is Linux' io_uring.
	IOURing AIO = "io_uring"
)

// OnError is what QEMU does when a read or a write of an image fails.
type OnError string

// Error policies.
const (
	// Stop the guest's CPUs before the guest sees the error.
	Stop OnError = ""
	// Ignore the error: the guest is told that all went well.
	Ignore OnError = "ignore"
	// Report the error to the guest.
	Report OnError = "report"
	// StopIfFull stops the guest's CPUs if the host has no room, and else reports the error.
	StopIfFull OnError = "enospc"
)

// policies returns QEMU's words for an error of a write, and of a read. A read cannot fail for want of room: QEMU knows
// no "enospc" for it, and reports the error by default.
func (e OnError) policies() (write, read string) {
	switch e {
	case Stop:
		return "stop", "stop"
	case StopIfFull:
		return string(e), ""
	}
	return string(e), string(e)
}

// BlockSizes are those that the guest sees, in bytes.
type BlockSizes struct {
	Logical  uint32 `json:"logical"`
	Physical uint32 `json:"physical"`
	// DiscardGranularity is QEMU's own where it is not set; 0 means that the guest can discard nothing, but on bus virtio
	// (Disk.NoDiscard).
	DiscardGranularity *uint32 `json:"discardGranularity,omitempty"`
}

// onOff returns a switch as QEMU's OnOffAuto has it.
func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// AIOFacts are which kinds of I/O a pod's QEMU can use.
type AIOFacts struct {
	// Native: the kernel gives a context for asynchronous I/O now.
	Native bool `json:"native,omitempty"`
	// NativePlenty: less than half of the node's room for such contexts (fs.aio-max-nr) is taken.
	NativePlenty bool `json:"nativePlenty,omitempty"`
	// IOURing: the kernel and the pod's seccomp profile permit io_uring.
	IOURing bool `json:"ioURing,omitempty"`
}
