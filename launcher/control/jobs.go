package control

// Commands about jobs: what takes longer than an answer may. A job is begun by a
// command of its own, whose answer names it; its progress and its result come with
// the launcher's state.
const (
	CommandGrowDisk  = "grow-disk"  // GrowDiskRequest → JobReply, when the job has begun
	CommandCancelJob = "cancel-job" // JobRequest → nothing; how the job ends, its result says
	CommandForgetJob = "forget-job" // JobRequest → nothing; somebody has seen the result
)

// Bounds of a launcher's list of jobs.
const (
	// MaxRunningJobs go on at a time.
	MaxRunningJobs = 8
	// MaxFinishedJobs are kept until somebody has seen them; the oldest goes first.
	MaxFinishedJobs = 8
	// MaxJobs is how many a state lists.
	MaxJobs = MaxRunningJobs + MaxFinishedJobs
	// MaxJobError is the length of an error's text, in bytes.
	MaxJobError = 1024
)

// JobKind is what a job does.
type JobKind string

// JobGrowDisk makes a disk larger. Its target is the disk's name in the Machine,
// its progress the disk's size.
const JobGrowDisk JobKind = "grow-disk"

// JobState is how far a job is.
type JobState string

// States of jobs.
const (
	JobRunning  JobState = "running"
	JobDone     JobState = "done"
	JobFailed   JobState = "failed"
	JobCanceled JobState = "canceled" // before it changed anything
)

// Job is something long that a launcher does, or has done.
type Job struct {
	// ID is a number that no other job of the launcher has: a later job has a higher one.
	ID     uint64   `json:"id"`
	Kind   JobKind  `json:"kind"`
	Target string   `json:"target"`
	State  JobState `json:"state"`
	// Done and Total are its progress in bytes.
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
	// Error says why it failed.
	Error string `json:"error,omitempty"`
}

// Finished says whether nothing more becomes of the job.
func (j Job) Finished() bool { return j.State != JobRunning }

// NewestJob is the last job of a kind that was begun on a target, or nil.
func NewestJob(jobs []Job, kind JobKind, target string) *Job {
	var newest *Job
	for i, j := range jobs {
		if j.Kind == kind && j.Target == target && (newest == nil || j.ID > newest.ID) {
			newest = &jobs[i]
		}
	}
	return newest
}

// GrowDiskRequest makes a disk on a claim larger, while the guest runs.
type GrowDiskRequest struct {
	// Disk is its name in the Machine.
	Disk string `json:"disk"`
	// Size in bytes of a disk on a file system. One on a block device gets the
	// device's, whatever is said here. No disk ever shrinks.
	Size int64 `json:"size"`
}

// JobReply names the job that was begun.
type JobReply struct {
	ID uint64 `json:"id"`
}

// JobRequest names a job.
type JobRequest struct {
	ID uint64 `json:"id"`
}
