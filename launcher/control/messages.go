// Package control is the protocol between virt-handler and virt-launcher: JSON lines in QMP's
// shape on a unix socket, with file descriptors beside them.
//
// The launcher dials and says hello, with its network namespace as a file descriptor. From then on the handler asks,
// and the launcher answers and sends events. No message says which VM it is about: the connection is the identity. A
// launcher lives for months and keeps its version of the protocol. A newer handler finds out which commands the
// launcher knows, and which fields of their arguments, and asks for no others. So answers and events may hold fields
// that their reader does not know; commands may not.
package control

import (
	"encoding/json"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/cloudinit"
	"github.com/kubeqemu/kubeqemu/netsetup/dhcp"
	"github.com/kubeqemu/kubeqemu/netsetup/ipv6"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Version is the version of the message format. Hello says what a launcher knows.
const Version = 1

// Commands that the handler sends, and the events that the launcher sends.
const (
	CommandInspect = "inspect" // InspectRequest → InspectReply
	CommandStart   = "start"   // StartRequest with tap and DHCP files → nothing
	// CommandQueryCommands → Commands; what the launcher knows
	CommandQueryCommands = "query-commands"

	CommandQueryState = "query-state" // → StateReport; QEMU is asked too, and EventState says if it is silent
	CommandShutdown   = "shutdown"    // → nothing; as SIGTERM
	CommandReject     = "reject"      // Termination → nothing; the VM cannot be started, ever

	CommandPause   = "pause"   // → nothing, when the guest's CPUs are stopped
	CommandUnpause = "unpause" // → nothing, when they run
	CommandReset   = "reset"   // → nothing; the reset button was pressed
	CommandGrace   = "grace"   // GraceRequest → nothing
	CommandConsole = "console" // → nothing, with FileConsole; the previous console ends
	CommandVNC     = "vnc"     // → nothing, with FileVNC, a connection to the VNC server

	CommandScreenshot  = "screenshot"   // → nothing, with FileScreenshot: a PNG, to its end
	CommandMovePointer = "move-pointer" // → nothing, when the guest had time to show that it woke up
	CommandStats       = "stats"        // → Stats: what the VM has used, measured when asked
	CommandArguments   = "arguments"    // → Arguments: what the running QEMU was started with

	EventHello = "hello" // Hello with FileNetNS
	EventState = "state" // StateReport
)

// Hello is the launcher's first message. One file goes with it: its network namespace.
type Hello struct {
	Version int `json:"version"`
	// Knows is the CommandsDigest of the launcher. Who has another one asks for the commands.
	Knows string `json:"knows"`
	// QEMUVersion is the version of the launcher's QEMU, such as 7.2.22.
	QEMUVersion string      `json:"qemuVersion"`
	State       StateReport `json:"state"`
}

// State is where a launcher is.
type State string

// States, in order. A launcher never goes back, except between running and paused.
const (
	StateWaiting      State = "waiting"   // for a Machine
	StatePreparing    State = "preparing" // overlays, seed, QEMU's start
	StateRunning      State = "running"
	StatePaused       State = "paused"
	StateShuttingDown State = "shutting-down" // the power button was pressed
	StateExited       State = "exited"
)

// Known reports whether s is one of the states above.
func (s State) Known() bool {
	switch s {
	case StateWaiting, StatePreparing, StateRunning, StatePaused, StateShuttingDown, StateExited, StateReceiving, StateReceived, StateMoved:
		return true
	}
	return false
}

// StateReport is what a launcher knows of its VM.
type StateReport struct {
	State State `json:"state"`
	// Machine is the Machine of the start request; nil before the request.
	Machine *qemuargs.Machine `json:"machine,omitempty"`
	// StartedAt is when the guest's CPUs first ran.
	StartedAt *time.Time `json:"startedAt,omitempty"`
	QEMUPID   int        `json:"qemuPID,omitempty"`
	// Failure says how the VM ended, if its launcher lives on (KeepLauncher), or why the guest of another launcher did not
	// come (Incoming).
	Failure string `json:"failure,omitempty"`
	// Pause says why the guest's CPUs are stopped; nil while they run.
	Pause *Pause `json:"pause,omitempty"`
	// QEMUSilent: QEMU has not answered for some time. It may answer again.
	QEMUSilent bool `json:"qemuSilent,omitempty"`
	// TPMLost says how the emulator of the machine's TPM has ended. The guest's TPM fails from then on.
	TPMLost string `json:"tpmLost,omitempty"`
	// Jobs are the running jobs, and finished jobs whose result nobody has seen yet.
	Jobs []Job `json:"jobs,omitempty"`
	// Migration is how far the source of a migration is, or was in the end.
	Migration *MigrationReport `json:"migration,omitempty"`
}

// Run states of QEMU (qapi/run-state.json) in which a guest's CPUs are stopped. Only these two
// are told apart from others.
const (
	PausedByUser  = "paused"
	PausedIOError = "io-error"
)

// Pause is why a guest's CPUs are stopped.
type Pause struct {
	// Status is QEMU's run state.
	Status string `json:"status"`
	// These describe an I/O error: the disk's name in the Machine, "read" or "write", and the
	// error in words. NoSpace: the disk's storage is full.
	Disk      string `json:"disk,omitempty"`
	Operation string `json:"operation,omitempty"`
	Error     string `json:"error,omitempty"`
	NoSpace   bool   `json:"noSpace,omitempty"`
}

// InspectRequest asks for what only the pod can see.
type InspectRequest struct {
	ContainerDisks []ContainerDisk `json:"containerDisks,omitempty"`
	// Claims are the disks on PersistentVolumeClaims.
	Claims []Claim `json:"claims,omitempty"`
	// ConfigVolumes are volumes of which the launcher makes disks.
	ConfigVolumes []ConfigVolume `json:"configVolumes,omitempty"`
	// Kernel names the files to be booted in the kernel's image volume.
	Kernel *KernelFiles `json:"kernel,omitempty"`
	// CPUs asks for the pod's CPUs.
	CPUs bool `json:"cpus,omitempty"`
	// Devices names the interfaces for which the pod has network cards of the node.
	Devices []string `json:"devices,omitempty"`
}

// Claim names the volume of a disk on a PersistentVolumeClaim, or the folder of a
// file of the node. Package layout says where it is: a folder, or a block device.
type Claim struct {
	Volume string `json:"volume"`
	// File is the disk's name in the folder; empty means disk.img.
	File     string `json:"file,omitempty"`
	Block    bool   `json:"block,omitempty"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// KernelFiles are paths of a kernel and, unless it is empty, of an initial RAM disk.
type KernelFiles struct {
	Kernel string `json:"kernel"`
	Initrd string `json:"initrd,omitempty"`
}

// ContainerDisk names the image volume of a disk and the disk's path in it;
// empty means the only file in /disk.
type ContainerDisk struct {
	Volume string `json:"volume"`
	Path   string `json:"path,omitempty"`
}

// InspectReply has one entry per container disk and per claim, in the
// request's order.
type InspectReply struct {
	ContainerDisks []qemuargs.ImageFacts  `json:"containerDisks,omitempty"`
	Claims         []qemuargs.VolumeFacts `json:"claims,omitempty"`
	// ConfigVolumes has one entry per config volume, in the request's order.
	ConfigVolumes []qemuargs.ConfigFacts `json:"configVolumes,omitempty"`
	// Kernel answers the request's.
	Kernel *qemuargs.KernelFacts `json:"kernel,omitempty"`
	// OverlayDirect: O_DIRECT works where overlays are made.
	OverlayDirect bool `json:"overlayDirect,omitempty"`
	// OverlayBlocks are the sizes of blocks where overlays are made.
	OverlayBlocks *qemuargs.BlockSizes `json:"overlayBlocks,omitempty"`
	// AIO says which kinds of I/O QEMU can use.
	AIO qemuargs.AIOFacts `json:"aio,omitzero"`
	// CPUNodes are the NUMA nodes of the CPUs that the launcher may run on, in the order in which the guest's CPUs get
	// them.
	CPUNodes []int `json:"cpuNodes,omitempty"`
	// Devices has one entry per interface, in the request's order.
	Devices []qemuargs.DeviceFacts `json:"devices,omitempty"`
}

// GraceRequest shortens the time from the power button to QEMU's end, also of a shutdown under
// way. The time never gets longer: the kubelet kills the pod in the end.
type GraceRequest struct {
	Seconds int64 `json:"seconds"`
}

// StartRequest is everything the launcher needs to start QEMU. With it go the taps
// that the Machine inherits, and the sockets of each entry of DHCP (DHCPFile) and of IPv6
// (RouterFile, DHCP6File).
type StartRequest struct {
	Machine   qemuargs.Machine `json:"machine"`
	CloudInit []CloudInitSeed  `json:"cloudInit,omitempty"`
	DHCP      []DHCPServer     `json:"dhcp,omitempty"`
	IPv6      []IPv6Server     `json:"ipv6,omitempty"`
	// AgentCredentials are the Secrets that the guest's agent brings into the guest.
	AgentCredentials []AgentCredential `json:"agentCredentials,omitempty"`
	// Paused: the guest's CPUs are not to run yet.
	Paused bool `json:"paused,omitempty"`
	// Incoming: the guest comes from another QEMU, which has the same Machine.
	Incoming bool `json:"incoming,omitempty"`
	// NoSerialLog keeps the serial port's output out of the pod's log.
	NoSerialLog bool `json:"noSerialLog,omitempty"`
	// KeepLauncher lets the launcher live on after a failure, until it is
	// asked to end, so that somebody can look around.
	KeepLauncher bool `json:"keepLauncher,omitempty"`
	// DedicatedCPUs, if set, gives each of the guest's CPUs one of the pod's.
	DedicatedCPUs *DedicatedCPUs `json:"dedicatedCPUs,omitempty"`
	// GraceSeconds is the time from the power button to QEMU's end.
	GraceSeconds int64 `json:"graceSeconds"`
	// Host holds the facts of node and pod from which the Machine was made: a resolve.Host, as JSON. The launcher reads
	// nothing of it, and has it ready for CommandArguments. It is empty if there are none.
	Host string `json:"host,omitempty"`
}

// CloudInitSeed is a seed to be written for a volume: NoCloud, or ConfigDrive.
type CloudInitSeed struct {
	Volume     string `json:"volume"`
	InstanceID string `json:"instanceID"`
	// ConfigDriveUUID is the machine's UUID, which a ConfigDrive seed has beside its
	// InstanceID. Empty: the seed is a NoCloud seed.
	ConfigDriveUUID string `json:"configDriveUUID,omitempty"`
	// AccessCredentials are numbers of Secrets that the pod mounts (package layout
	// says where), with public SSH keys for the seed.
	AccessCredentials []int `json:"accessCredentials,omitempty"`

	// Devices are those with tags, of which a ConfigDrive seed tells.
	Devices []cloudinit.Device `json:"devices,omitempty"`

	Hostname    string `json:"hostname"`
	UserData    []byte `json:"userData,omitempty"`
	NetworkData []byte `json:"networkData,omitempty"`
	// UserDataSecret and NetworkDataSecret: the data is in a Secret that the pod mounts
	// (package layout says where), and not in this message.
	UserDataSecret    bool `json:"userDataSecret,omitempty"`
	NetworkDataSecret bool `json:"networkDataSecret,omitempty"`
}

// DHCPServer is a lease that the launcher serves on a socket of the handler's. Name servers
// and search domains that the lease leaves out come from the pod's resolv.conf.
type DHCPServer struct {
	NIC   string     `json:"nic"`
	Lease dhcp.Lease `json:"lease"`
	// Service is the guest's own domain within the cluster's, such as
	// web.team-a.svc; the guest searches it first.
	Service string `json:"service,omitempty"`
}

// IPv6Server is what the launcher tells the guest in IPv6 on two sockets of the handler's. Name
// servers and search domains that the lease leaves out come from the pod's resolv.conf.
type IPv6Server struct {
	NIC   string     `json:"nic"`
	Lease ipv6.Lease `json:"lease"`
	// Service is as in DHCPServer.
	Service string `json:"service,omitempty"`
}

// Reason says in one word how a VM ended.
type Reason string

// Reasons for the end of a VM.
const (
	ReasonGuestShutdown   Reason = "GuestShutdown"       // the guest powered off by itself
	ReasonShutdown        Reason = "Shutdown"            // the guest powered off after the power button
	ReasonGracePeriodOver Reason = "GracePeriodExceeded" // the guest did not power off in time, and QEMU was ended
	ReasonNeverStarted    Reason = "NeverStarted"        // the launcher was asked to end before the VM was started
	ReasonStartFailed     Reason = "StartFailed"         // QEMU did not come up
	ReasonGuestPanic      Reason = "GuestPanicked"
	ReasonQEMUExited      Reason = "QEMUExited"     // QEMU ended, and neither the guest nor the launcher asked for it
	ReasonQMPLost         Reason = "QMPLost"        // QEMU lived, but could not be driven, and was killed
	ReasonMigrated        Reason = "Migrated"       // the guest runs on the target of a migration
	ReasonPostCopyFailed  Reason = "PostCopyFailed" // the guest's memory did not follow the guest to another node
)

// Known reports whether r is one of the reasons above: a launcher may have written anything.
func (r Reason) Known() bool {
	switch r {
	case ReasonGuestShutdown, ReasonShutdown, ReasonGracePeriodOver, ReasonNeverStarted, ReasonStartFailed, ReasonGuestPanic, ReasonQEMUExited, ReasonQMPLost, ReasonMigrated, ReasonPostCopyFailed:
		return true
	}
	return false
}

// Termination is what a launcher leaves as its termination message: how the
// VM ended. At most 4 KiB of JSON, which is Kubernetes' limit.
type Termination struct {
	Reason  Reason `json:"reason"`
	Message string `json:"message,omitempty"`
	// ExitCode and Signal are QEMU's.
	ExitCode int    `json:"exitCode,omitempty"`
	Signal   string `json:"signal,omitempty"`
	// Stderr is the end of what QEMU wrote to stdout and stderr.
	Stderr string `json:"stderr,omitempty"`
}

// Succeeded reports whether the guest went down in order, or went on elsewhere.
func (t Termination) Succeeded() bool {
	return t.Reason == ReasonGuestShutdown || t.Reason == ReasonShutdown || t.Reason == ReasonMigrated
}

// maxTermination is Kubernetes' limit for a termination message, in bytes.
const maxTermination = 4096

// Encode returns the termination message, with as much of stderr's end as fits.
func (t Termination) Encode() []byte {
	for {
		data, err := json.Marshal(t)
		if err == nil && len(data) <= maxTermination {
			return data
		}
		// A byte takes up to six bytes when it is escaped, so cutting a sixth of the excess
		// never cuts more than needed.
		cut := max(1, (len(data)-maxTermination)/6)
		switch {
		case len(t.Stderr) > 0:
			t.Stderr = t.Stderr[min(cut, len(t.Stderr)):]
		case len(t.Message) > 0:
			t.Message = t.Message[:max(0, len(t.Message)-cut)]
		default:
			return []byte(`{"reason":"QEMUExited"}`)
		}
	}
}
