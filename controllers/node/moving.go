package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// A guest moves from this node (depart.go), or to it (arrive.go). The two virt-handlers agree by the VMI's status,
// where one write decides on which node the guest is to run:
//
//   - The source's guest stands still once QEMU has sent nearly all of it, and runs on by itself only if the target
//     cannot have all of it.
//   - The target lets the guest run only after its virt-handler has written the decision Target.
//   - The source lets a guest that may have arrived run again only after its virt-handler, or virt-controller, has
//     written the decision Source.
//
// While the API server does not answer, the guest stands still on both nodes.

// errOver means that the migration has ended, or that the VMI is gone.
var errOver = errors.New("the migration has ended")

const (
	// amendments is how often a change is computed anew because the VMI has changed meanwhile.
	amendments = 10
	// writeTimeout bounds one question to the API server.
	writeTimeout = 10 * time.Second
)

// amend changes the state of a migration in the VMI's status, and returns the VMI as it is then. change gets the VMI and
// that state, changes the state alone, and returns false if there is nothing to write. Each write carries the version that it was computed from: where another
// program was faster, change sees what that program has written.
func (r *Reconciler) amend(ctx context.Context, vmi *v1.VirtualMachineInstance, change func(*v1.VirtualMachineInstance, *v1.VirtualMachineInstanceMigrationState) bool) (*v1.VirtualMachineInstance, error) {
	migration := vmi.Status.MigrationState.MigrationUID
	for range amendments {
		if m := vmi.Migration(); m == nil || m.MigrationUID != migration {
			return vmi, errOver
		}
		before := vmi.DeepCopy()
		if vmi = vmi.DeepCopy(); !change(vmi, vmi.Status.MigrationState) {
			return before, nil
		}
		err := r.patch(ctx, before, vmi)
		if err == nil {
			return vmi, nil
		}
		if !apierrors.IsConflict(err) {
			return before, fmt.Errorf("write the migration's state: %w", err)
		}
		now, err := r.read(ctx, client.ObjectKeyFromObject(before))
		if err != nil {
			return before, err
		}
		if now == nil || now.UID != before.UID {
			return before, errOver
		}
		vmi = now
	}
	return vmi, fmt.Errorf("write the migration's state: the VMI has changed %d times meanwhile", amendments)
}

func (r *Reconciler) patch(ctx context.Context, before, vmi *v1.VirtualMachineInstance) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return r.Client.Status().Patch(ctx, vmi, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// read returns the VMI as the API server has it, or nil if it is gone.
func (r *Reconciler) read(ctx context.Context, key client.ObjectKey) (*v1.VirtualMachineInstance, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return find(ctx, r.Live, key)
}

// pausedByUser says whether a guest is paused because its user has asked for that.
func pausedByUser(vmi *v1.VirtualMachineInstance) bool {
	c := vmi.Status.Condition(v1.ConditionPaused)
	return c != nil && c.Reason == v1.ReasonPausedByUser
}
