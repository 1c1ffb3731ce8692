package migration

import (
	"cmp"
	"context"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/peers"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/controllers/node/start"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// A guest whose memory takes too long to be copied may go on by post-copy: QEMU sends its CPUs and devices, the guest
// runs on the target, and its memory follows. From QEMU's switch on, the source cannot run the guest again. So the
// source's virt-handler writes PostCopyTimestamp into the VMI's status before it tells the launcher. After that write
// nobody decides for the source while the guest may be on its way, and the target alone decides that it runs there,
// as ever.

// postCopy is what is known of post-copy for a departure.
type postCopy struct {
	// granted: both launchers and both virt-handlers can. refused says why not, if it was asked for.
	granted bool
	refused string
	// begun: the launcher was told to go on by post-copy.
	begun bool
	// back is when it was first seen that the guest is to run here again.
	back time.Time
	// sent finds out that no memory follows any more, and until is when it must all be there.
	sent  stall
	until time.Time
}

// postCopyPatience is how much longer the launcher takes where it waits for the word post-copy.
const postCopyPatience = time.Minute

// wishes returns what the source would use if the target can.
func (d *departure) wishes(launcher *sessions.Session) []string {
	if !d.vmi.Status.MigrationState.MigrationConfiguration.PostCopy() {
		return nil
	}
	if len(d.vmi.Spec.Domain.Devices.Filesystems) > 0 {
		d.postCopy.refused = "the guest has file systems, whose programs cannot wait for memory that is not there yet"
		return nil
	}
	err := cmp.Or(launcher.Takes(control.CommandMigrate, control.MigrateRequest{PostCopy: true}),
		launcher.Takes(control.CommandPostCopy, control.JobRequest{ID: 1}))
	if err != nil {
		d.postCopy.refused = "the source: " + control.Short(err.Error())
		return nil
	}
	d.postCopy.refused = "the target's virt-handler did not answer the wish"
	return []string{peers.WishPostCopy}
}

// hear takes the target's answer to the wishes.
func (p *postCopy) hear(answer *peers.Answer) {
	switch why := answer.Denied[peers.WishPostCopy]; {
	case slices.Contains(answer.Granted, peers.WishPostCopy):
		p.granted, p.refused = true, ""
	case why != "":
		p.refused = "the target: " + control.Short(why)
	}
}

// goOnByPostCopy lets the guest go on by post-copy, once it is written that nobody may cancel the migration any more.
// If that cannot be written, nothing happens.
func (d *departure) goOnByPostCopy(ctx context.Context, launcher *sessions.Session, job uint64) {
	now := metav1.NewTime(d.of.Node.Clock.Now())
	vmi, err := d.of.Node.amend(ctx, d.vmi, func(vmi *v1.VirtualMachineInstance,
		s *v1.VirtualMachineInstanceMigrationState) bool {
		if s.Decision != "" || vmi.DeletionTimestamp != nil || vmi.IsFinal() || s.PostCopy() {
			return false
		}
		state := sourceState(s).DeepCopy()
		state.PostCopyTimestamp = &now
		s.SourceState = state
		return true
	})
	if err != nil {
		d.log.Info("a guest cannot go on by post-copy yet", "reason", err.Error())
		return
	}
	if d.vmi = vmi; vmi.Status.MigrationState.Decision != "" || !vmi.Status.MigrationState.PostCopy() {
		return // the migration ends anyway
	}
	d.postCopy.begun = true
	d.log.Info("a guest goes on by post-copy", "to", vmi.Status.MigrationState.TargetNode)
	if err := launcher.Call(ctx, control.CommandPostCopy, control.JobRequest{ID: job}, nil); err != nil {
		d.log.Info("the launcher does not go on by post-copy", "reason", control.Short(err.Error()))
	}
}

// returns reports whether a guest that has left by post-copy may run on the source again, if the target does not have
// it: QEMU has sent everything, and keeps it.
func returns(state control.StateReport) bool {
	job := control.NewestJob(state.Jobs, control.JobMigrate, control.JobTargetGuest)
	return state.State != control.StateMoved || job != nil && job.State == control.JobDone
}

// returnPatience is how long the source has to hear that the target has all of the memory.
const returnPatience = 10 * time.Second

// completes reports whether the source will soon have all of the memory and can run the guest again. The target gives
// a guest back once it has all of the memory, and the source's QEMU hears of that a little later.
func (p *postCopy) completes(state control.StateReport, now time.Time) bool {
	if p.back.IsZero() {
		p.back = now
	}
	return p.begun && state.State == control.StateMoved && sending(state) && now.Sub(p.back) < returnPatience
}

// postCopyFactor is how many times longer than its pre-copy a guest's memory may follow it. A guest that has run on
// the target is not given up easily. But a migration takes a place that others wait for.
const postCopyFactor = 10

// endTrail ends the channels of a guest whose memory does not follow any more. Then the target's launcher ends the
// guest.
func (d *departure) endTrail(vmi *v1.VirtualMachineInstance, state control.StateReport) {
	if !vmi.Status.MigrationState.PostCopy() || !sending(state) || d.open.pairs == nil {
		return
	}
	p, config, now := &d.postCopy, vmi.Status.MigrationState.MigrationConfiguration, d.of.Node.Clock.Now
	if p.until.IsZero() {
		memory := start.GuestMemory(vmi)
		most := postCopyFactor * config.Completion(memory)
		if rate := config.Bandwidth(); rate > 0 {
			most = max(most, time.Duration(min(2*(memory/rate), int64(v1.MaxMigrationTime/time.Second)))*time.Second)
		}
		p.sent, p.until = stall{limit: config.Progress() + launcherSlack, now: now}, now().Add(min(most, v1.MaxMigrationTime))
	}
	if p.sent.look(d.open.carried.Load()) || now().After(p.until) {
		d.log.Info("a guest's memory does not follow it, and the guest ends")
		d.open.close()
	}
}

// receiving reports whether a launcher still receives the memory of its guest.
func receiving(state control.StateReport) bool {
	job := control.NewestJob(state.Jobs, control.JobReceive, control.JobTargetGuest)
	return job != nil && !job.Finished()
}

// grant returns which of the source's wishes the target fulfils, and why not the others.
func (a *Arrivals) grant(ctx context.Context, vmi *v1.VirtualMachineInstance, launcher *sessions.Session,
	wishes []string) *peers.Answer {
	if !slices.Contains(wishes, peers.WishPostCopy) {
		return &peers.Answer{}
	}
	deny := func(why string) *peers.Answer {
		return &peers.Answer{Denied: map[string]string{peers.WishPostCopy: control.Short(why)}}
	}
	if !vmi.Status.MigrationState.MigrationConfiguration.PostCopy() {
		return deny("the migration's configuration does not allow it")
	}
	var reply control.PostCopyReply
	if err := launcher.Call(ctx, control.CommandPermitPostCopy, nil, &reply); err != nil {
		return deny(err.Error())
	}
	if reply.Refused != "" {
		return deny(reply.Refused)
	}
	return &peers.Answer{Granted: []string{peers.WishPostCopy}}
}
