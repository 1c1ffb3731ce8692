package life

import (
	"fmt"
	"syscall"
	"time"
)

// Event is something that the loop has heard.
type Event interface{ event() }

// What virt-handler, users and the node ask for. All but the last three are
// answered by the action Answer, or by what becomes of the action Operate.
type (
	// StartAsked: virt-handler has sent what QEMU needs.
	StartAsked struct{ Order Order }
	// Rejected: virt-handler found no way to start the VM.
	Rejected struct{ Text string }
	// OperationAsked: a user wants something of the guest.
	OperationAsked struct {
		Operation Operation
		Agent     Agent
	}
	// ShutdownAsked is a signal, or virt-handler's command.
	ShutdownAsked struct{ At time.Time }
	// GraceShortened gives the guest less time to shut down, from the power
	// button on, also where that was pressed already.
	GraceShortened struct {
		Seconds int64
		At      time.Time
	}
	// Canceled: the launcher is being ended.
	Canceled struct{}
)

// Operation is what a user may want of a guest that runs.
type Operation string

// Operations, in the words of the control protocol.
const (
	Pause      Operation = "pause"
	Unpause    Operation = "unpause"
	Reset      Operation = "reset"
	SoftReboot Operation = "soft-reboot"
)

// Agent is what is known of the guest's agent.
type Agent struct{ Connected, Frozen bool }

// What became of what the loop was told to do. Nothing is heard of what failed
// for QEMU's end: that is heard of itself.
type (
	// Prepared: disks and seed are there, or why not.
	Prepared struct{ Err error }
	// ExecFailed: QEMU could not be started.
	ExecFailed struct{ Err error }
	// Handshaken: QEMU answers, and has let the guest run unless it is to start
	// paused.
	Handshaken struct{ At time.Time }
	// HandshakeFailed: it did not, and lives.
	HandshakeFailed struct{ Err error }
	// OperationFailed: QEMU or the guest's agent did not do it.
	OperationFailed struct{ Operation Operation }
	// RestartFailed: QEMU did not start a guest again that had powered off.
	RestartFailed struct{ Err error }
	// ContinueFailed: nor did it let one run that an I/O error stopped.
	ContinueFailed struct{}
	// ReasonTold answers AskReason.
	ReasonTold struct {
		Pause   int
		Status  string
		Running bool
	}
	// ProbeAnswered answers Probe.
	ProbeAnswered struct{}
)

// What QEMU tells by itself. Nothing of it is believed to be impossible.
type (
	// Resumed is RESUME: the guest's CPUs run.
	Resumed struct{ At time.Time }
	// Stopped is STOP: they do not.
	Stopped struct{}
	// PoweredDown is SHUTDOWN.
	PoweredDown struct {
		Guest  bool // the guest asked for it
		Reason string
	}
	// Panic is GUEST_PANICKED.
	Panic struct{}
	// IOFailed is a BLOCK_IO_ERROR that QEMU stops the guest for. It tells of it
	// before it stops (blk_error_action in block/block-backend.c).
	IOFailed struct{ Error IOError }
	// MonitorLost: QEMU's monitor has ended. QEMU closes it when it exits; one that
	// lives on without cannot be driven, nor asked to stop.
	MonitorLost struct{ Err error }
	// QEMUExited: its process is no more, and all that it had told before was heard.
	QEMUExited struct{ Exit Exit }
)

// Probed: somebody wants to know whether QEMU is there.
type Probed struct{}

// Expired: a timer did.
type Expired struct{ Timer Timer }

// IOError is what QEMU says of an I/O error.
type IOError struct {
	Disk, Operation, Text string
	NoSpace               bool
}

// Exit is how QEMU's process ended.
type Exit struct {
	Code   int
	Signal syscall.Signal
}

func (e Exit) String() string {
	if e.Signal != 0 {
		return fmt.Sprintf("was killed by signal %d (%s)", int(e.Signal), e.Signal)
	}
	return fmt.Sprintf("exited with code %d", e.Code)
}

func (StartAsked) event()      {}
func (Rejected) event()        {}
func (OperationAsked) event()  {}
func (ShutdownAsked) event()   {}
func (GraceShortened) event()  {}
func (Canceled) event()        {}
func (Prepared) event()        {}
func (ExecFailed) event()      {}
func (Handshaken) event()      {}
func (HandshakeFailed) event() {}
func (OperationFailed) event() {}
func (RestartFailed) event()   {}
func (ContinueFailed) event()  {}
func (ReasonTold) event()      {}
func (ProbeAnswered) event()   {}
func (Resumed) event()         {}
func (Stopped) event()         {}
func (PoweredDown) event()     {}
func (Panic) event()           {}
func (IOFailed) event()        {}
func (MonitorLost) event()     {}
func (QEMUExited) event()      {}
func (Probed) event()          {}
func (Expired) event()         {}
