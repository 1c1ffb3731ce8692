package control

// Commands of a migration: a guest moves from the source's launcher to the target's. Each
// launcher hands out one end of each channel, and the virt-handlers carry the bytes between the
// two. Only virt-handler decides where the guest runs, by the VMI's status:
//
//	target: start (Incoming)                    state receiving
//	both:   open-channel, export-disk and mirror-disk, whose files the virt-handlers connect
//	target: receive                             a job
//	source: migrate                             a job
//	                                            source: state moved; target: state received
//	then    target: run      source: release    or, if the guest is not to run there,
//	        source: take-back
//
// The guest's memory may come last. Then the target is asked for permit-post-copy before receive, and the
// source's migrate has PostCopy. Once its report says PostCopyDue, the source may be told post-copy. Then the states are
// the same, but the jobs end only when the memory has arrived. Before that the guest can run on the target alone, release is
// refused, and take-back ends the guest.
const (
	// CommandOpenChannel → nothing, with FileChannel: the other end of the channel that carries
	// the guest's memory and devices. A channel that was opened before is closed.
	CommandOpenChannel = "open-channel"
	// CommandExportDisk is for the target: DiskRequest → nothing, with FileChannel, a connection
	// to the disk.
	CommandExportDisk = "export-disk"
	// CommandMirrorDisk is for the source: DiskRequest → nothing, with FileChannel, the other end
	// of a connection to the target's disk. migrate copies the disk.
	CommandMirrorDisk = "mirror-disk"
	// CommandReceive → JobReply.
	CommandReceive = "receive"
	// CommandMigrate is MigrateRequest → JobReply. Canceled, the guest runs on.
	CommandMigrate = "migrate"
	// CommandRun lets a received guest run: RunRequest → RunReply, when the guest's CPUs run or QEMU has
	// refused. After an error the guest may have run.
	CommandRun = "run"
	// CommandTakeBack lets a guest run on its source again: nothing → nothing, when its CPUs run or
	// QEMU was told so. The guest must not run on the target.
	CommandTakeBack = "take-back"
	// CommandRelease ends the source: nothing → nothing. The guest runs on the target.
	CommandRelease = "release"
	// CommandPermitPostCopy is for the target, in state receiving: nothing → PostCopyReply.
	CommandPermitPostCopy = "permit-post-copy"
	// CommandPostCopy is for the source: JobRequest, of a migrate with PostCopy, → nothing. The job can still be canceled
	// until the source's state is moved.
	CommandPostCopy = "post-copy"
)

// FileChannel is the file that goes with the answer to open-channel, export-disk and mirror-disk.
const FileChannel = "channel"

// States of launchers between which a guest moves. Only launchers that were asked to move a guest
// are in them.
const (
	// StateReceiving: QEMU waits for the guest.
	StateReceiving State = "receiving"
	// StateReceived: QEMU has all of the guest, whose CPUs are stopped until run.
	StateReceived State = "received"
	// StateMoved: the guest's CPUs are stopped, and the guest may run elsewhere.
	StateMoved State = "moved"
)

// Jobs of migrations. The target of both is JobTargetGuest, and their progress is that of
// MigrationReport.
const (
	JobMigrate     JobKind = "migrate"
	JobReceive     JobKind = "receive"
	JobTargetGuest         = "guest"
)

// VariablesDisk is the name, where a disk is named, of the UEFI variables on the claim with the guest's state. No disk has such a name. The target has
// them before the guest can come, also a guest that is paused: QEMU writes them to the target's file only when the guest runs.
const VariablesDisk = "uefi variables"

// DiskRequest names a disk of the Machine, or VariablesDisk.
type DiskRequest struct {
	Disk string `json:"disk"`
}

// MigrateRequest bounds a migration. The disks of mirror-disk are copied first.
type MigrateRequest struct {
	// BytesPerSecond bounds what is sent; 0 is no bound.
	BytesPerSecond int64 `json:"bytesPerSecond,omitempty"`
	// DowntimeMilliseconds is how long the guest may be stopped for what is sent last.
	DowntimeMilliseconds int64 `json:"downtimeMilliseconds"`
	// CompletionSeconds bounds the time of it all, and StallSeconds the time in which the rest
	// gets no smaller.
	CompletionSeconds int64 `json:"completionSeconds"`
	StallSeconds      int64 `json:"stallSeconds"`
	// AutoConverge slows the guest down, if it changes memory faster than it is sent.
	AutoConverge bool `json:"autoConverge,omitempty"`
	// PostCopy: the target has permitted that the memory comes last.
	PostCopy bool `json:"postCopy,omitempty"`
}

// PostCopyReply is the answer to permit-post-copy.
type PostCopyReply struct {
	// Refused is why the memory cannot come last; empty if it can.
	Refused string `json:"refused,omitempty"`
}

// RunRequest lets a received guest run.
type RunRequest struct {
	// Paused leaves the guest's CPUs stopped, because a user had paused the guest.
	Paused bool `json:"paused,omitempty"`
}

// RunReply is the answer to run.
type RunReply struct {
	// Refused is why QEMU did not let the guest run. The guest has not run then: its source may take it back.
	Refused string `json:"refused,omitempty"`
}

// MigrationReport is how far the migration is that the launcher was asked for last.
type MigrationReport struct {
	// Transferred, Remaining and Total are bytes of disks, and then of memory.
	Transferred int64 `json:"transferred"`
	Remaining   int64 `json:"remaining"`
	Total       int64 `json:"total"`
	// DirtyBytesPerSecond is how much memory the guest changes.
	DirtyBytesPerSecond int64 `json:"dirtyBytesPerSecond,omitempty"`
	// Milliseconds is the time since the migration began.
	Milliseconds int64 `json:"milliseconds"`
	// DowntimeMilliseconds is how long the guest was stopped, as far as the source knows; 0 before
	// the end.
	DowntimeMilliseconds int64 `json:"downtimeMilliseconds,omitempty"`
	// PostCopyDue: the migration has taken as long as it may, and ends without success within a minute unless
	// virt-handler says post-copy.
	PostCopyDue bool `json:"postCopyDue,omitempty"`
}
