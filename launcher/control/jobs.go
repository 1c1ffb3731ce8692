package control

// Commands about jobs. A job is a task that takes longer than an answer may. Each kind of job
// has a command that begins it, and the answer names the job. The job's progress and result
// come with the launcher's state.
const (
	CommandCancelJob = "cancel-job" // JobRequest → nothing; the job's result says how it ended
	CommandForgetJob = "forget-job" // JobRequest → nothing; virt-handler has seen the result
)

// Bounds of a launcher's list of jobs.
const (
	// MaxRunningJobs is how many jobs run at a time.
	MaxRunningJobs = 8
	// MaxFinishedJobs is how many finished jobs are kept until virt-handler has seen them; the
	// oldest goes first.
	MaxFinishedJobs = 8
	// MaxJobs is how many jobs a state report lists.
	MaxJobs = MaxRunningJobs + MaxFinishedJobs
	// MaxJobError is the length of an error's text, in bytes.
	MaxJobError = 1024
)

// JobKind is what a job does.
type JobKind string

// JobState is how far a job is.
type JobState string

// States of jobs.
const (
	JobRunning  JobState = "running"
	JobDone     JobState = "done"
	JobFailed   JobState = "failed"
	JobCanceled JobState = "canceled" // before it changed anything
)

// Job is a long task of a launcher, running or finished.
type Job struct {
	// ID is unique within the launcher. A later job has a higher ID.
	ID     uint64   `json:"id"`
	Kind   JobKind  `json:"kind"`
	Target string   `json:"target"`
	State  JobState `json:"state"`
	// Done and Total are the progress in bytes, or in what the comment of the kind says.
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
	// Error says why the job failed.
	Error string `json:"error,omitempty"`
}

// Finished reports whether the job has ended.
func (j Job) Finished() bool { return j.State != JobRunning }

// NewestJob returns the last job of a kind that was begun on a target, or nil.
func NewestJob(jobs []Job, kind JobKind, target string) *Job {
	var newest *Job
	for i, j := range jobs {
		if j.Kind == kind && j.Target == target && (newest == nil || j.ID > newest.ID) {
			newest = &jobs[i]
		}
	}
	return newest
}

// JobReply names the job that was begun.
type JobReply struct {
	ID uint64 `json:"id"`
}

// JobRequest names a job.
type JobRequest struct {
	ID uint64 `json:"id"`
}
