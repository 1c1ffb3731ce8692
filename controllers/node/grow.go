package node

import (
	"context"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/handover"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// growDisks asks the launcher to grow disks to the sizes of their claims' volumes, each by a job, and follows the
// jobs. It returns the wait until a failed growth is tried again, or 0.
func (r *Reconciler) growDisks(ctx context.Context, vmi *v1.VirtualMachineInstance,
	launcher *sessions.Session) (again time.Duration) {
	state := launcher.State()
	if state.StartedAt == nil || state.State == control.StateExited {
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

func (r *Reconciler) growDisk(ctx context.Context, launcher *sessions.Session, disk string, size int64,
	newest *control.Job) (again time.Duration) {
	log, now := ctrl.LoggerFrom(ctx).WithValues("disk", disk, "size", size), r.Clock.Now()
	g := launcher.Growth(disk)
	if g.See(newest, now) {
		if newest.State == control.JobDone {
			log.V(1).Info("disk is as large as its claim", "now", newest.Done)
		} else {
			log.Info("a disk could not be made as large as its claim", "job", newest.ID, "error", control.Short(newest.Error))
		}
		if err := launcher.Call(ctx, control.CommandForgetJob, control.JobRequest{ID: newest.ID}, nil); err != nil {
			log.V(1).Info("the launcher still lists a job", "job", newest.ID, "error", control.Short(err.Error()))
		}
	}
	start, again := g.Next(newest, size, now)
	if start {
		request := control.GrowDiskRequest{Disk: disk, Size: size}
		if err := launcher.Call(ctx, control.CommandGrowDisk, request, nil); err != nil {
			log.Info("a disk cannot be made as large as its claim", "error", control.Short(err.Error()))
			g.Fail(now)
			again = sessions.GrowPatience
		}
	}
	launcher.SetGrowth(disk, g)
	return again
}

// writable reports whether the guest can write to a disk on a claim: only such disks grow.
func writable(vmi *v1.VirtualMachineInstance, d v1.Disk) bool {
	if handover.OnlyRead(vmi, d.Name) {
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
