package life

import (
	"fmt"
	"syscall"
	"time"
)

// Event is something that the loop has heard.
type Event interface{ event() }

// Requests of virt-handler, users and the node. The first three are answered: by the action
// Answer, or by the outcome of the actions Operate and Reboot.
type (
	// StartAsked: virt-handler has sent what QEMU needs.
	StartAsked struct{ Order Order }
	// Rejected: virt-handler found no way to start the VM.
	Rejected struct{ Text string }
	// OperationAsked: a user asks for an operation on the guest.
	OperationAsked struct {
		Operation Operation
		Agent     Agent
	}
	// ShutdownAsked is a signal, or virt-handler's command.
	ShutdownAsked struct{ At time.Time }
	// GraceShortened gives the guest less time to shut down. The time counts from the power
	// button, also if the button was pressed already.
	GraceShortened struct {
		Seconds int64
		At      time.Time
	}
	// Canceled: the launcher is being ended.
	Canceled struct{}
)

// Requests of virt-handler for a guest that moves from one QEMU to another, all of them answered.
type (
	// MigrateAsked: the guest is to leave. Busy: QEMU was asked for something for the guest, and
	// has not answered.
	MigrateAsked struct{ Busy bool }
	// TakeBackAsked: the guest is to run here again.
	TakeBackAsked struct{}
	// ReleaseAsked: the guest runs elsewhere.
	ReleaseAsked struct{}
	// RunAsked: the guest that was received is to run, unless a user had paused it.
	RunAsked struct {
		Paused bool
		At     time.Time
	}
)

// Operation is what a user may ask for on a running guest.
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

// Outcomes of actions. If an action failed because QEMU ended, only OperationFailed says so:
// QEMU's end is an event of its own.
type (
	// Prepared: disks and seed are made, or Err says why not.
	Prepared struct{ Err error }
	// ExecFailed: QEMU could not be started.
	ExecFailed struct{ Err error }
	// Handshaken: QEMU answers, and lets the guest run unless it is to start paused.
	Handshaken struct{ At time.Time }
	// HandshakeFailed: QEMU did not answer or did not let the guest run, and lives.
	HandshakeFailed struct{ Err error }
	// OperationFailed: QEMU or the guest's agent did not carry out the operation.
	OperationFailed struct{ Operation Operation }
	// RestartFailed: QEMU did not start a guest again that had powered off.
	RestartFailed struct{ Err error }
	// ContinueFailed: QEMU did not let a guest run that an I/O error stopped.
	ContinueFailed struct{}
	// ReasonTold answers AskReason.
	ReasonTold struct {
		Pause   int
		Status  string
		Running bool
	}
	// ProbeAnswered answers Probe.
	ProbeAnswered struct{}
	// SwitchoverAsked: QEMU has stopped the guest in order to send the rest. The action
	// AnswerSwitchover answers.
	SwitchoverAsked struct{}
	// PostCopyBegun: QEMU was told to send the guest before its memory.
	PostCopyBegun struct{}
	// MemoryTrails: QEMU has sent the guest without its memory, and sends that now.
	MemoryTrails struct{}
	// MigrationEnded: QEMU has sent all of the guest, or Err says why not. With an error, the
	// guest runs here if it ran before. NoReturn: it cannot.
	MigrationEnded struct {
		Err      error
		NoReturn bool
	}
	// AllButMemory: QEMU has received all of a guest but its memory.
	AllButMemory struct{}
	// ReceptionEnded: QEMU has received all of a guest, or Err says why not.
	ReceptionEnded struct{ Err error }
	// RunAnswered: QEMU lets a received guest run.
	RunAnswered struct{}
	// RunFailed: QEMU did not let a received guest run. Unheard: virt-handler does not wait for the answer any more.
	RunFailed struct {
		Err     error
		Unheard bool
	}
)

// What QEMU tells by itself. Any of these may come in any state.
type (
	// Resumed is RESUME: the guest's CPUs run.
	Resumed struct{ At time.Time }
	// Stopped is STOP: the guest's CPUs are stopped.
	Stopped struct{}
	// PoweredDown is SHUTDOWN.
	PoweredDown struct {
		Guest  bool // the guest asked for it
		Reason string
	}
	// Panic is GUEST_PANICKED. Kept: QEMU stops the guest and lives on, because it was told to keep a guest that powers off.
	Panic struct{ Kept bool }
	// IOFailed is a BLOCK_IO_ERROR for which QEMU stops the guest. QEMU sends it before it
	// stops the guest (blk_error_action in block/block-backend.c).
	IOFailed struct{ Error IOError }
	// MonitorLost: QEMU's monitor has ended. QEMU closes its monitor when it exits; a QEMU
	// that lives on without a monitor cannot be driven, nor asked to stop.
	MonitorLost struct{ Err error }
	// QEMUExited: QEMU's process has ended, and its events were heard before.
	QEMUExited struct{ Exit Exit }
)

// TPMEnded: the emulator of the machine's TPM has ended, after it Said its last line.
type TPMEnded struct {
	Exit Exit
	Said string
}

// String returns how the emulator has ended, and its last line if it wrote one.
func (e TPMEnded) String() string {
	how := fmt.Sprintf("the emulator of the TPM %s", e.Exit)
	if e.Said != "" {
		how += ": " + e.Said
	}
	return how
}

// Probed: virt-handler wants to know whether QEMU answers.
type Probed struct{}

// Expired: a timer has expired.
type Expired struct{ Timer Timer }

// IOError is an I/O error as QEMU describes it.
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
func (MigrateAsked) event()    {}
func (TakeBackAsked) event()   {}
func (ReleaseAsked) event()    {}
func (RunAsked) event()        {}
func (SwitchoverAsked) event() {}
func (PostCopyBegun) event()   {}
func (MemoryTrails) event()    {}
func (MigrationEnded) event()  {}
func (AllButMemory) event()    {}
func (ReceptionEnded) event()  {}
func (RunFailed) event()       {}
func (RunAnswered) event()     {}
func (Probed) event()          {}
func (TPMEnded) event()        {}
func (Expired) event()         {}
