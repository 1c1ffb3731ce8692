package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/handover"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

const (
	// refusedPatience is the wait after the launcher has begun no job: it refuses while the guest is being migrated.
	refusedPatience = 10 * time.Second
	// linkPatience is the wait after a link could not be changed.
	linkPatience = 10 * time.Second
	// growPatience is the wait after a disk could not be made larger.
	growPatience = 5 * time.Minute
	// followTimeout bounds all that a launcher is asked in one turn. A launcher that does not answer holds up no other VM
	// for longer.
	followTimeout = 30 * time.Second
)

// wish is what one part of a running machine is to be.
type wish struct {
	// part is the part's path in the Machine, as qemuargs.Change has it.
	part string
	// wanted is what the part is to be, in words.
	wanted string
	// patience is how long what fails is not asked for again.
	patience time.Duration
	// apply makes the part of a Machine so.
	apply func(*qemuargs.Machine)
}

// followSpec asks the launcher to make the running machine what the VMI wants, one part by a job. A part that fails
// holds up no other. followSpec returns the wait until a failed attempt is repeated, or 0.
func (r *Reconciler) followSpec(ctx context.Context, vmi *v1.VirtualMachineInstance,
	launcher *sessions.Session) (again time.Duration) {
	state := launcher.State()
	if state.StartedAt == nil || state.State == control.StateExited || state.Machine == nil {
		return 0
	}
	now := r.Clock.Now()
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	answers := true
	for _, e := range launcher.SeeJobs(state.Jobs, control.JobBecome, now) {
		tell(ctx, e)
		answers = answers && forget(ctx, launcher, e.Job.ID)
	}
	busy := slices.ContainsFunc(state.Jobs, func(j control.Job) bool {
		return j.Kind == control.JobBecome && !j.Finished()
	})
	for _, w := range wishes(vmi, state.Machine) {
		ask, wait := launcher.Attempt(w.part).Next(w.wanted, now)
		if ask && !busy {
			wait = r.ask(ctx, w, launcher, state.Machine)
			busy = wait == 0
		}
		again = kit.Sooner(again, wait)
	}
	return again
}

// ask asks the launcher for what is wished. It returns the wait until it may be asked again, or 0 if a job has begun.
func (r *Reconciler) ask(ctx context.Context, w wish, launcher *sessions.Session,
	running *qemuargs.Machine) (again time.Duration) {
	next := *running
	next.NICs, next.Disks = slices.Clone(next.NICs), slices.Clone(next.Disks)
	w.apply(&next)
	var reply control.JobReply
	err := launcher.Call(ctx, control.CommandBecome, control.BecomeRequest{Machine: next}, &reply)
	if err == nil && reply.ID == 0 {
		err = errors.New("the launcher names no job")
	}
	if err == nil {
		launcher.Begun(w.part, w.wanted, reply.ID, w.patience)
		return 0
	}
	again = refusedPatience
	if errors.Is(err, context.DeadlineExceeded) {
		again = w.patience // and it may do it all the same
	}
	why := control.Short(err.Error())
	// The call may have taken long.
	if launcher.Refused(w.part, w.wanted, why, r.Clock.Now().Add(again)) {
		ctrl.LoggerFrom(ctx).Info("the launcher does not change the machine", "part", w.part, "wanted", w.wanted,
			"error", why)
	}
	return again
}

// tell logs how a job has ended. Jobs that no wish waits for are logged only for whoever looks for a fault: a launcher
// may list as many as it likes.
func tell(ctx context.Context, e sessions.Ended) {
	log := ctrl.LoggerFrom(ctx).WithValues("job", e.Job.ID, "part", e.Wish)
	switch {
	case e.Wish == "":
		log.V(1).Info("a job that nobody waits for has ended")
	case e.Job.State == control.JobDone:
		log.Info("the launcher has changed the machine", "changes", e.Job.Done)
	default:
		log.Info("the machine could not be changed", "error", control.Short(e.Job.Error))
	}
}

// forget makes the launcher drop a job whose result was seen. It reports whether the launcher has answered.
func forget(ctx context.Context, launcher *sessions.Session, job uint64) (answered bool) {
	err := launcher.Call(ctx, control.CommandForgetJob, control.JobRequest{ID: job}, nil)
	if err != nil {
		ctrl.LoggerFrom(ctx).V(1).Info("the launcher still lists a job", "job", job, "error", control.Short(err.Error()))
	}
	return err == nil
}

// wishes returns what the running machine is to be by the VMI, where it is not so yet. Links come first: who takes a
// link down wants the guest off that network now.
func wishes(vmi *v1.VirtualMachineInstance, running *qemuargs.Machine) (out []wish) {
	for _, nic := range vmi.Spec.Domain.Devices.Interfaces {
		i := slices.IndexFunc(running.NICs, func(n qemuargs.NIC) bool { return n.Name == nic.Name })
		down := nic.Link() == v1.LinkDown
		if i < 0 || running.NICs[i].HostDevice != "" || running.NICs[i].Down == down {
			continue
		}
		out = append(out, wish{fmt.Sprintf("nics[%s]", nic.Name), string(nic.Link()), linkPatience,
			func(m *qemuargs.Machine) { m.NICs[i].Down = down }})
	}
	for _, d := range vmi.Spec.Domain.Devices.Disks {
		info := vmi.Status.ClaimInfo(d.Name)
		i := slices.IndexFunc(running.Disks, func(old qemuargs.Disk) bool { return old.Name == d.Name })
		if info == nil || !writable(vmi, d) || i < 0 || info.DiskSize() <= running.Disks[i].Image.Size {
			continue
		}
		size := info.DiskSize()
		out = append(out, wish{fmt.Sprintf("disks[%s]", d.Name), fmt.Sprintf("%d bytes", size), growPatience,
			func(m *qemuargs.Machine) { m.Disks[i].Image.Size = size }})
	}
	return out
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
