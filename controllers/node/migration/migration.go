// Package migration moves guests between nodes: away from this one (depart.go), and to it (arrive.go). The two
// virt-handlers agree by the VMI's status, where one write decides on which node the guest is to run:
//
//   - The source's guest stands still once QEMU has sent nearly all of it, and runs on by itself only if the target
//     cannot have all of it.
//   - The target lets the guest run only after its virt-handler has written the decision Target.
//   - The source lets a guest that may have arrived run again only after its virt-handler, or virt-controller, has
//     written the decision Source.
//
// While the API server does not answer, the guest stands still on both nodes.
package migration

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/lookup"
	"github.com/kubeqemu/kubeqemu/controllers/node/peers"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
)

// Node is what both halves of a migration need of this node.
type Node struct {
	Name   string
	Client client.Client
	// Live reads past the cache.
	Live     client.Reader
	Clock    clock.PassiveClock
	Sessions *sessions.Set
	// CPU is this node's processor.
	CPU peers.CPU
}

// maxMessage bounds why a migration failed, in the VMI's status, in bytes.
const maxMessage = 1024

// errOver means that the migration has ended, or that the VMI is gone.
var errOver = errors.New("the migration has ended")

const (
	// amendments is how often a change is computed anew because the VMI has changed meanwhile.
	amendments = 10
	// writeTimeout bounds one question to the API server.
	writeTimeout = 10 * time.Second
)

// amendment changes the state of a migration, by the VMI in whose status it is. It returns false if there is nothing to
// write.
type amendment func(*v1.VirtualMachineInstance, *v1.VirtualMachineInstanceMigrationState) bool

// amend changes the state of a migration in the VMI's status, and returns the VMI as it is then. Each write carries the
// version that it was computed from: where another program was faster, the amendment sees what that program has
// written.
func (n *Node) amend(ctx context.Context, vmi *v1.VirtualMachineInstance,
	change amendment) (*v1.VirtualMachineInstance, error) {
	migration := vmi.Status.MigrationState.MigrationUID
	for range amendments {
		if m := vmi.Migration(); m == nil || m.MigrationUID != migration {
			return vmi, errOver
		}
		before := vmi.DeepCopy()
		if vmi = vmi.DeepCopy(); !change(vmi, vmi.Status.MigrationState) {
			return before, nil
		}
		err := n.patch(ctx, before, vmi)
		if err == nil {
			return vmi, nil
		}
		if !apierrors.IsConflict(err) {
			return before, fmt.Errorf("write the migration's state: %w", err)
		}
		now, err := n.read(ctx, client.ObjectKeyFromObject(before))
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

func (n *Node) patch(ctx context.Context, before, vmi *v1.VirtualMachineInstance) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return n.Client.Status().Patch(ctx, vmi, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// read returns the VMI as the API server has it, or nil if it is gone.
func (n *Node) read(ctx context.Context, key client.ObjectKey) (*v1.VirtualMachineInstance, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return lookup.VMI(ctx, n.Live, key)
}

// pausedByUser reports whether a guest is paused because its user has asked for that.
func pausedByUser(vmi *v1.VirtualMachineInstance) bool {
	c := vmi.Status.Condition(v1.ConditionPaused)
	return c != nil && c.Reason == v1.ReasonPausedByUser
}
