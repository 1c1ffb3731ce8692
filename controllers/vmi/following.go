package vmi

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// noteBindings notes in the status what the cluster says of the plugins of the VMI's interfaces. Once the status
// reports a pod, that stays.
func (r *Reconciler) noteBindings(ctx context.Context, t *turn) (time.Duration, error) {
	if t.pod != nil && reported(&t.before.Status) {
		return 0, nil
	}
	cluster, err := r.cluster(ctx)
	if err == nil {
		observeBindings(t.vmi, cluster)
	}
	return 0, err
}

// noteState notes in the status what the cache has of the claim with the guest's state.
func (r *Reconciler) noteState(ctx context.Context, t *turn) (time.Duration, error) {
	return 0, r.observeState(ctx, t.vmi, t.pod)
}

// noteMoves notes in the status which disks a migration copies to other claims.
func (r *Reconciler) noteMoves(ctx context.Context, t *turn) (time.Duration, error) {
	vm, err := r.machine(ctx, r.Client, t.vmi)
	if err != nil {
		return 0, err
	}
	return r.observeMoves(ctx, t.vmi, vm), nil
}

// notePod brings the status up to date with the pod.
func (r *Reconciler) notePod(_ context.Context, t *turn) (time.Duration, error) {
	vmi, pod, now := t.vmi, t.pod, r.now()
	begin(&vmi.Status, now) // each phase has its time in the status, Pending too
	// What a guest has lost stays in the status of a VMI that ends: this comes before observe, which may end the VMI.
	observeSidecars(vmi, pod, now)
	observeMigratable(vmi, now)
	observe(&vmi.Status, pod, now)
	observeDevices(vmi, pod)
	observeMemory(vmi, pod)
	observeReadiness(vmi, pod, now)
	return 0, nil
}

// observeMigratable writes into the status whether the guest can move to another node.
func observeMigratable(vmi *v1.VirtualMachineInstance, now metav1.Time) {
	c := v1.VirtualMachineInstanceCondition{Type: v1.ConditionLiveMigratable, Status: metav1.ConditionTrue,
		Reason: v1.ReasonMigratable, Message: "the guest can move to another node"}
	vmi.Status.MigrationMethod = vmi.Method()
	if reason, message := vmi.NotMigratable(); reason != "" {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reason, message
		vmi.Status.MigrationMethod = ""
	}
	vmi.Status.MigrationTransport = v1.TransportUnix
	vmi.Status.SetCondition(c, now)
}
