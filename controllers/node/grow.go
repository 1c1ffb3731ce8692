package node

import (
	"context"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// growPatience is until a disk that could not be made larger is tried again.
const growPatience = 5 * time.Minute

// growth is what a session knows of a disk on a claim. The launcher has the rest:
// a virt-handler that was started anew finds the job that it, or the one before,
// has begun.
type growth struct {
	size  int64     // that the disk was made, in bytes
	seen  uint64    // the last job whose result was seen
	after time.Time // nothing is tried before
}

// see takes the result of a job, if it is news.
func (g *growth) see(j *control.Job, now time.Time) (news bool) {
	if j == nil || !j.Finished() || j.ID <= g.seen {
		return false
	}
	g.seen = j.ID
	if j.State == control.JobDone {
		g.size = max(g.size, j.Total)
	} else {
		g.after = now.Add(growPatience)
	}
	return true
}

// next says whether a disk is to be made so large now, or how long to wait with
// it. A job that goes on is waited for: its result brings us back.
func (g *growth) next(j *control.Job, size int64, now time.Time) (start bool, wait time.Duration) {
	switch {
	case j != nil && !j.Finished() && j.ID > g.seen, size <= g.size:
		return false, 0
	case now.Before(g.after):
		return false, g.after.Sub(now)
	}
	return true, 0
}

// growDisks has the launcher make disks as large as their claims' volumes have
// become, each by a job, and follows the jobs. It returns when to try again what
// failed, or 0.
func (r *Reconciler) growDisks(ctx context.Context, vmi *v1.VirtualMachineInstance, launcher *session) (again time.Duration) {
	state := launcher.State()
	if state.StartedAt == nil || state.State == control.StateExited || launcher.has(control.CommandGrowDisk) != nil {
		return 0
	}
	for _, d := range vmi.Spec.Domain.Devices.Disks {
		info := vmi.Status.ClaimInfo(d.Name)
		if info == nil || !writable(vmi, d) {
			continue
		}
		wait := r.growDisk(ctx, launcher, d.Name, info.DiskSize(), control.NewestJob(state.Jobs, control.JobGrowDisk, d.Name))
		if wait > 0 && (again == 0 || wait < again) {
			again = wait
		}
	}
	return again
}

func (r *Reconciler) growDisk(ctx context.Context, launcher *session, disk string, size int64, newest *control.Job) (again time.Duration) {
	log, now := ctrl.LoggerFrom(ctx).WithValues("disk", disk, "size", size), r.Clock.Now()
	g := launcher.growth(disk)
	if g.see(newest, now) {
		if newest.State == control.JobDone {
			log.V(1).Info("disk is as large as its claim", "now", newest.Done)
		} else {
			log.Info("a disk could not be made as large as its claim", "job", newest.ID, "error", short(newest.Error))
		}
		if err := launcher.call(ctx, control.CommandForgetJob, control.JobRequest{ID: newest.ID}, nil); err != nil {
			log.V(1).Info("the launcher still lists a job", "job", newest.ID, "error", short(err.Error()))
		}
	}
	start, again := g.next(newest, size, now)
	if start {
		if err := launcher.call(ctx, control.CommandGrowDisk, control.GrowDiskRequest{Disk: disk, Size: size}, nil); err != nil {
			log.Info("a disk cannot be made as large as its claim", "error", short(err.Error()))
			g.after, again = now.Add(growPatience), growPatience
		}
	}
	launcher.setGrowth(disk, g)
	return again
}

// writable says whether the guest can write to a disk on a claim: others do not grow.
func writable(vmi *v1.VirtualMachineInstance, d v1.Disk) bool {
	if onlyRead(vmi, d.Name) {
		return false
	}
	for _, v := range vmi.Spec.Volumes {
		if v.Name == d.Name {
			source := v.Claim()
			return source != nil && !source.ReadOnly
		}
	}
	return false
}

func (s *session) growth(disk string) growth {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.growths[disk]
}

func (s *session) setGrowth(disk string, g growth) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.growths == nil {
		s.growths = map[string]growth{}
	}
	s.growths[disk] = g
}
