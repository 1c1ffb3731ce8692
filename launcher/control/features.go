package control

import (
	"slices"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Features are what a launcher can do beyond the core, which is hello, state reports, inspect,
// start, query-state, shutdown and reject. A launcher lists its features in hello; a start
// request lists those that its VM needs. A feature never changes: new behaviour gets a new
// name.
const (
	FeatureJobs        = "jobs" // cancel-job and forget-job; a command that begins a job has its own feature
	FeatureGrowDisk    = "grow-disk"
	FeaturePause       = "pause" // pause and unpause; also to start paused
	FeatureReset       = "reset"
	FeatureGrace       = "grace"
	FeatureConsole     = "console"
	FeatureVNC         = "vnc"
	FeatureScreenshot  = "screenshot" // and move-pointer
	FeatureStats       = "stats"
	FeatureAgent       = "guest-agent" // the agent's port, EventAgent, and the commands about the agent
	FeatureSoftReboot  = "soft-reboot"
	FeatureConfigDrive = "config-drive"       // a cloud-init seed of that kind
	FeatureCredentials = "access-credentials" // Secrets for the seed and for the guest agent
	FeatureKeep        = "keep-launcher"
	FeatureVhostNet    = "vhost-net"       // a start request may bring open files of vhost-net
	FeatureCluster     = "cluster-machine" // SMBIOS version and SKU; a balloon without free page reporting
	FeatureHoldPings   = "hold-pings"      // pings of probes are answered without the guest agent
	FeatureMigration   = "migration"       // the guest can move to another launcher, or come from one
	FeaturePostCopy    = "post-copy"       // and go on there before its memory is there
	FeatureClock       = "clock-offset"    // a clock that is ahead of UTC, or behind
	FeatureBoard       = "board"           // a chassis of the VMI's, and no window for PCI above 4 GiB
	FeatureRequired    = "required-cpu"    // a guest whose CPU lacks a required feature does not run
	FeatureUEFI        = "uefi"            // UEFI, and system management mode on or off
	FeatureState       = "state"           // UEFI variables, or a TPM, on the claim with the guest's state
	FeatureStateCopy   = "state-copy"      // a guest that moves takes its state to another claim: a source sends the UEFI variables, and a target says received when all of the state is on its claim
	FeatureTPM         = "tpm"             // a TPM, by swtpm
	FeatureConfig      = "config-volumes"  // disks made of config volumes
	FeatureIPv6        = "ipv6"            // the guest is told of an IPv6 address and a router
	FeatureDeviceTags  = "device-tags"     // a ConfigDrive seed that tells of devices
	FeatureDiskTuning  = "disk-tuning"     // disks' cache modes, kinds of I/O, error policies, block sizes, threads and buses; LUNs; disks that guests share; transitional devices
	FeatureDedicated   = "dedicated-cpus"  // each of the guest's CPUs has a CPU of the node to itself
	FeaturePlaces      = "places"          // places for more CPUs and memory
	FeatureLinkState   = "link-state"      // set-link, and a card whose link is down from the start
	FeatureNUMA        = "numa"            // the guest has NUMA nodes
	FeatureHugePages   = "huge-pages"      // the guest's memory is huge pages of the node
	FeatureExtras      = "extra-devices"   // panic devices, sound cards, numbers of cards for ACPI, reboots that end the guest, virtio disks of which nothing can be discarded
	FeatureACPITables  = "acpi-tables"     // ACPI tables of Secrets
	FeatureFileSystems = "virtiofs"        // file systems that programs in containers of their own serve
	FeaturePasst       = "passt"           // cards with passt behind them, in a container of its own
	FeatureARM64       = "arm64"           // a guest of arm64, by QEMU's board virt
	FeatureSRIOV       = "sriov"           // network cards of the node, of which the launcher tells the addresses
	FeatureLinkRefresh = "link-refresh"    // a link that goes down and up after a migration
)

// Features returns the features of this version.
func Features() []string {
	return []string{FeatureJobs, FeatureGrowDisk, FeaturePause, FeatureReset, FeatureGrace, FeatureConsole, FeatureVNC, FeatureScreenshot,
		FeatureStats, FeatureAgent, FeatureSoftReboot, FeatureConfigDrive, FeatureCredentials, FeatureKeep, FeatureVhostNet, FeatureCluster, FeatureHoldPings, FeatureMigration, FeaturePostCopy, FeatureUEFI, FeatureState, FeatureStateCopy, FeatureTPM, FeatureConfig, FeatureIPv6, FeatureDiskTuning, FeatureDeviceTags, FeatureClock, FeatureBoard, FeatureRequired, FeatureHugePages, FeatureDedicated, FeaturePlaces, FeatureLinkState, FeatureExtras, FeatureACPITables, FeatureFileSystems, FeatureNUMA, FeatureARM64, FeatureSRIOV, FeatureLinkRefresh, FeaturePasst}
}

// FeatureOf is the feature that a command belongs to; empty for a command of the core.
func FeatureOf(command string) string {
	switch command {
	case CommandCancelJob, CommandForgetJob:
		return FeatureJobs
	case CommandGrowDisk:
		return FeatureGrowDisk
	case CommandPause, CommandUnpause:
		return FeaturePause
	case CommandReset:
		return FeatureReset
	case CommandGrace:
		return FeatureGrace
	case CommandConsole:
		return FeatureConsole
	case CommandVNC:
		return FeatureVNC
	case CommandScreenshot, CommandMovePointer:
		return FeatureScreenshot
	case CommandStats:
		return FeatureStats
	case CommandGuestInfo, CommandUsers, CommandFileSystems, CommandFreeze, CommandUnfreeze:
		return FeatureAgent
	case CommandSetLink:
		return FeatureLinkState
	case CommandSoftReboot:
		return FeatureSoftReboot
	case CommandHoldPings:
		return FeatureHoldPings
	case CommandOpenChannel, CommandExportDisk, CommandMirrorDisk, CommandReceive, CommandMigrate, CommandRun, CommandTakeBack, CommandRelease:
		return FeatureMigration
	case CommandPermitPostCopy, CommandPostCopy:
		return FeaturePostCopy
	}
	return ""
}

// Lacks returns the needed features that features does not hold.
func Lacks(features, needs []string) []string {
	var out []string
	for _, need := range needs {
		if !slices.Contains(features, need) {
			out = append(out, need)
		}
	}
	return out
}

// machineFeatures are the features of Machines with fields that virt-handlers of earlier releases do not know.
func machineFeatures(m *qemuargs.Machine) []feature {
	return []feature{
		{FeatureClock, m.Clock.Offset != 0},
		{FeatureBoard, m.Chassis != nil || m.NoPCIHole64},
		{FeatureRequired, len(m.CPU.Required) > 0},
		{FeatureHugePages, m.HugePageBytes != 0},
		{FeaturePlaces, m.Memory != nil || m.CPU.MaxSockets != 0},
		{FeatureNUMA, len(m.NUMA) > 0},
		{FeatureState, m.Firmware != nil && m.Firmware.Variables.InState || m.TPM != nil && m.TPM.InState},
		{FeatureTPM, m.TPM != nil},
		{FeatureLinkState, slices.ContainsFunc(m.NICs, func(n qemuargs.NIC) bool { return n.Down })},
		{FeatureExtras, m.PanicPort != nil || m.PanicCard != nil || m.Sound != nil || m.EndOnReboot || slices.ContainsFunc(m.NICs, func(n qemuargs.NIC) bool { return n.ACPIIndex != 0 }) ||
			slices.ContainsFunc(m.Disks, func(d qemuargs.Disk) bool { return d.NoDiscard })},
		{FeatureACPITables, len(m.ACPITables) > 0},
		{FeatureARM64, m.Arch == qemuargs.ARM64},
		{FeatureConfig, slices.ContainsFunc(m.Disks, func(d qemuargs.Disk) bool { return d.Image.Packed > 0 })},
		{FeatureFileSystems, len(m.FileSystems) > 0},
		{FeatureSRIOV, slices.ContainsFunc(m.NICs, func(n qemuargs.NIC) bool { return n.HostDevice != "" })},
		{FeatureLinkRefresh, slices.ContainsFunc(m.NICs, func(n qemuargs.NIC) bool { return n.RefreshLink })},
		{FeaturePasst, slices.ContainsFunc(m.NICs, func(n qemuargs.NIC) bool { return n.Passt != "" })},
		{FeatureDiskTuning, len(m.IOThreads) > 0 || m.Agent != nil && m.Agent.Transitional || slices.ContainsFunc(m.Disks, qemuargs.Disk.Tuned)},
	}
}

// MachineNeeds returns the features of a Machine that a migration's target must know: its virt-handler would leave out fields of the Machine that
// it does not know, and the guest would go on with another machine.
func MachineNeeds(m *qemuargs.Machine) []string { return needed(machineFeatures(m)) }

// KnownMachineNeeds are all that MachineNeeds returns in this release.
func KnownMachineNeeds() (out []string) {
	for _, f := range machineFeatures(&qemuargs.Machine{}) {
		out = append(out, f.name)
	}
	return out
}

// feature is a feature, and whether something needs it.
type feature struct {
	name   string
	needed bool
}

func needed(features []feature) (out []string) {
	for _, f := range features {
		if f.needed {
			out = append(out, f.name)
		}
	}
	return out
}

// NeededFeatures are the features that a request's VM needs beyond the core: without them the
// VM would not be what its spec says.
func (r *StartRequest) NeededFeatures() []string {
	seed := func(has func(CloudInitSeed) bool) bool { return slices.ContainsFunc(r.CloudInit, has) }
	return append(needed([]feature{
		{FeatureConsole, r.Machine.Serial != nil},
		{FeatureVNC, r.Machine.Graphics != nil},
		{FeatureAgent, r.Machine.Agent != nil},
		{FeaturePause, r.Paused},
		{FeatureConfigDrive, seed(func(s CloudInitSeed) bool { return s.ConfigDriveUUID != "" })},
		{FeatureDeviceTags, seed(func(s CloudInitSeed) bool { return len(s.Devices) > 0 })},
		{FeatureCredentials, len(r.AgentCredentials) > 0 || seed(func(s CloudInitSeed) bool { return len(s.AccessCredentials) > 0 })},
		{FeatureKeep, r.KeepLauncher},
		{FeatureMigration, r.Incoming},
		{FeatureDedicated, r.DedicatedCPUs != nil},
		{FeatureUEFI, r.Machine.Firmware != nil || r.Machine.SMM != ""},
		{FeatureIPv6, len(r.IPv6) > 0},
		{FeatureVhostNet, slices.ContainsFunc(r.Machine.NICs, func(n qemuargs.NIC) bool { return n.Vhost })},
		{FeatureCluster, r.Machine.SMBIOS.Version != "" || r.Machine.SMBIOS.SKU != "" || r.Machine.Balloon != nil && r.Machine.Balloon.NoReporting},
	}), MachineNeeds(&r.Machine)...)
}
