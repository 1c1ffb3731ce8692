package migration

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

const (
	// decisionPatience is how long the target has to decide after the source has sent everything. The target's
	// virt-handler may have been restarted meanwhile.
	decisionPatience = 30 * time.Second
	// decisionLook is the time between two looks at the VMI, and lateLook that after decisionPatience.
	decisionLook = 250 * time.Millisecond
	lateLook     = 2 * time.Second
)

// conclude sees to it that the guest runs where it is decided, and decides for the source if the guest does not move.
// failed is why it does not; nil if it may have arrived.
func (d *departure) conclude(ctx context.Context, failed error) {
	patience := d.of.Node.Clock.Now().Add(decisionPatience)
	tick := time.NewTicker(decisionLook)
	defer tick.Stop()
	for {
		late := d.of.Node.Clock.Now().After(patience)
		over, err := d.settle(ctx, failed, late)
		if err != nil {
			d.log.V(1).Info("it is not settled yet where a guest runs", "reason", control.Short(err.Error()))
		}
		if over {
			return
		}
		if late {
			tick.Reset(lateLook)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// settle does what is decided. It returns whether there is nothing left to do.
func (d *departure) settle(ctx context.Context, failed error, late bool) (over bool, err error) {
	vmi, err := d.of.Node.read(ctx, client.ObjectKeyFromObject(d.vmi))
	if err != nil {
		return false, err // the guest goes on standing still if it does
	}
	migration := d.vmi.Status.MigrationState.MigrationUID
	if vmi == nil || vmi.UID != d.vmi.UID || vmi.Status.MigrationState == nil ||
		vmi.Status.MigrationState.MigrationUID != migration {
		return true, nil
	}
	launcher := d.launcher()
	if launcher != nil {
		d.endTrail(vmi, launcher.State())
	}
	switch vmi.Status.MigrationState.Decision {
	case v1.DecisionTarget:
		return d.leave(ctx, vmi, launcher, late)
	case v1.DecisionSource:
		if failed != nil && !errors.Is(failed, errDecided) && sourceState(vmi.Status.MigrationState).Failure == "" {
			// Somebody else has decided. Mostly the target has ended because the source gave up, and only the source knows why.
			d.vmi = vmi
			d.report(ctx, func(s *v1.MigrationSourceState) { s.Failure = control.Printable(failed.Error(), maxMessage) })
		}
		return d.stay(ctx, launcher)
	}
	if vmi.IsFinal() {
		return true, nil // virt-handler's reconciler ends guests whose VMI has ended
	}
	// Without a launcher here, nobody can tell whether the guest has arrived. virt-controller sees the end of the pod.
	here := launcher != nil && launcher.State().State != control.StateMoved
	if launcher == nil || !late && (failed == nil || !here) {
		return false, nil
	}
	if vmi.Status.MigrationState.PostCopy() && !returns(launcher.State()) {
		return false, nil // virt-controller sees the end of the target
	}
	if failed == nil {
		failed = fmt.Errorf("the target did not say within %s that it has the guest", decisionPatience)
	}
	_, err = d.of.Node.amend(ctx, vmi, func(_ *v1.VirtualMachineInstance,
		s *v1.VirtualMachineInstanceMigrationState) bool {
		if s.Decision != "" {
			return false
		}
		state := sourceState(s).DeepCopy()
		state.Failure = control.Printable(failed.Error(), maxMessage)
		s.SourceState, s.Decision = state, v1.DecisionSource
		return true
	})
	if errors.Is(err, errOver) {
		err = nil
	}
	return false, err // the next look does what is decided
}

// leave ends the launcher here once the guest runs on the target. It waits a little for the time for which the guest
// stood still.
func (d *departure) leave(ctx context.Context, vmi *v1.VirtualMachineInstance, launcher *sessions.Session,
	late bool) (over bool, err error) {
	ready := targetState(vmi.Status.MigrationState).DomainReadyTimestamp != nil
	if launcher == nil || vmi.IsFinal() {
		// virt-controller deletes the pod, and virt-handler's reconciler ends guests whose VMI has ended.
		return ready || vmi.IsFinal(), nil
	}
	state := launcher.State()
	if state.State != control.StateMoved && state.State != control.StateExited {
		d.log.Info("end a guest at once: it is decided that it runs on another node", "state", state.State)
		return true, launcher.EndAtOnce(ctx)
	}
	if !ready || sending(state) && !late {
		return false, nil
	}
	d.vmi = vmi
	d.report(ctx, func(s *v1.MigrationSourceState) { s.Progress = progress(state.Migration) })
	if err := launcher.Call(ctx, control.CommandRelease, nil, nil); err != nil && !errors.Is(err, control.ErrClosed) {
		return late, err
	}
	d.log.Info("a guest has moved", "to", vmi.Status.MigrationState.TargetNode)
	return true, nil
}

// stay lets the guest run here again if it stands still.
func (d *departure) stay(ctx context.Context, launcher *sessions.Session) (over bool, err error) {
	if launcher == nil {
		return true, nil // its next hello begins anew
	}
	state := launcher.State()
	if d.postCopy.completes(state, d.of.Node.Clock.Now()) {
		return false, nil
	}
	// QEMU runs its guest on when the channel has ended, and virt-handler has an end of it, too.
	d.open.close()
	if state.State == control.StateMoved {
		return false, launcher.Call(ctx, control.CommandTakeBack, nil, nil)
	}
	job := control.NewestJob(state.Jobs, control.JobMigrate, control.JobTargetGuest)
	switch {
	case job == nil:
		return true, nil
	case !job.Finished():
		return false, launcher.Call(ctx, control.CommandCancelJob, control.JobRequest{ID: job.ID}, nil)
	}
	return true, launcher.Call(ctx, control.CommandForgetJob, control.JobRequest{ID: job.ID}, nil)
}
