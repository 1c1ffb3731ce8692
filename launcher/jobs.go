package launcher

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/launcher/link"
)

// jobs are the launcher's tasks that take longer than an answer may. The loop owns them; each
// runs on a goroutine of its own.
type jobs struct {
	last uint64
	all  []*job // in the order of their numbers
}

type job struct {
	control.Job
	cancel context.CancelFunc
}

// begin adds a running job.
func (j *jobs) begin(kind control.JobKind, target string, total int64, cancel context.CancelFunc) (*job, error) {
	running := 0
	for _, other := range j.all {
		if other.Finished() {
			continue
		}
		if running++; other.Target == target {
			return nil, fmt.Errorf("job %d, %s, is still working on %s", other.ID, other.Kind, target)
		}
	}
	if running >= control.MaxRunningJobs {
		return nil, fmt.Errorf("%d jobs are still running", running)
	}
	j.last++
	added := &job{control.Job{ID: j.last, Kind: kind, Target: target, State: control.JobRunning, Total: total}, cancel}
	j.all = append(j.all, added)
	return added, nil
}

// end records how a job has ended. context.Canceled means that the job had changed nothing
// yet. Beyond MaxFinishedJobs finished jobs, the oldest one is dropped.
func (j *jobs) end(ended *job, done int64, err error) {
	ended.cancel()
	ended.Done = done
	switch {
	case err == nil:
		ended.State = control.JobDone
	case errors.Is(err, context.Canceled):
		ended.State = control.JobCanceled
	default:
		ended.State, ended.Error = control.JobFailed, control.Cut(err.Error(), control.MaxJobError)
	}
	finished := 0
	for i := len(j.all) - 1; i >= 0; i-- {
		if !j.all[i].Finished() {
			continue
		}
		if finished++; finished > control.MaxFinishedJobs {
			j.all = slices.Delete(j.all, i, i+1)
		}
	}
}

func (j *jobs) find(id uint64) (*job, error) {
	for _, known := range j.all {
		if known.ID == id {
			return known, nil
		}
	}
	return nil, fmt.Errorf("there is no job %d", id)
}

// running reports whether any job has not ended.
func (j *jobs) running() bool {
	return slices.ContainsFunc(j.all, func(known *job) bool { return !known.Finished() })
}

func (j *jobs) list() []control.Job {
	var out []control.Job
	for _, known := range j.all {
		out = append(out, known.Job)
	}
	return out
}

// startJob runs work beside the loop, and answers with the job's number at once. The state
// report before that answer lists the job already. ended gets the job's error, or why it cannot
// begin, on the loop, before the report of its end. startJob returns what cancels the job.
func (l *launcher) startJob(ctx context.Context, m *link.Command, kind control.JobKind, target string, total int64,
	work func(context.Context) (done int64, err error), ended func(error)) context.CancelFunc {
	working, cancel := context.WithCancel(ctx)
	j, err := l.jobs.begin(kind, target, total, cancel)
	if err != nil {
		cancel()
		ended(err)
		m.Answer(nil, err)
		return cancel
	}
	l.link.Report(l.report())
	m.Answer(control.JobReply{ID: j.ID}, nil)
	var done int64
	l.later(ctx, func() (err error) {
		done, err = work(working)
		return err
	}, func(err error) {
		if err != nil {
			l.Log.Warn("a job has failed", "job", j.ID, "kind", kind, "target", target, "error", err)
		}
		l.jobs.end(j, done, err)
		ended(err)
		l.link.Report(l.report())
	})
	return cancel
}

// cancelJob cancels a job. A job that has begun to change something ends in its own way.
func (l *launcher) cancelJob(_ context.Context, m *link.Command) {
	j, err := l.namedJob(m)
	switch {
	case err != nil:
	case j.Kind == control.JobMigrate && !j.Finished() && l.life.Follows(),
		j.Kind == control.JobReceive && !j.Finished() && l.life.Memory == life.Coming:
		err = fmt.Errorf("cannot cancel job %d: the guest's memory follows the guest to another node (post-copy), "+
			"and there is no way back", j.ID)
	default:
		j.cancel()
	}
	m.Answer(nil, err)
}

// forgetJob drops a finished job whose result virt-handler has seen.
func (l *launcher) forgetJob(_ context.Context, m *link.Command) {
	j, err := l.namedJob(m)
	if err == nil && !j.Finished() {
		err = fmt.Errorf("job %d is still running", j.ID)
	}
	if err == nil {
		l.jobs.all = slices.DeleteFunc(l.jobs.all, func(other *job) bool { return other == j })
		l.link.Keep(l.report()) // virt-handler knows the result, so no report is sent now
	}
	m.Answer(nil, err)
}

// endJob cancels a job that has held the guest for longer than it may.
func (l *launcher) endJob(id uint64) {
	j, err := l.jobs.find(id)
	if err != nil || j.Finished() {
		return
	}
	l.Log.Warn("a job has held the guest for too long, and is canceled", "job", id, "kind", j.Kind)
	j.cancel()
}

func (l *launcher) namedJob(m *link.Command) (*job, error) {
	var request control.JobRequest
	if err := control.Decode(m.Data, &request); err != nil {
		return nil, err
	}
	return l.jobs.find(request.ID)
}
