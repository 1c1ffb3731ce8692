package claimcopy

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/stateclaim"
)

// HandOver deletes the old claim after the state of a VMI's guest has moved, and the copies of it that failed
// migrations made: these copies would count as the state once the old claim is gone. An event of the VMI says what
// was deleted, or why the claim is kept. HandOver is called after a migration, before the next one, and at the VMI's
// end: somebody may have removed the migration's object before virt-controller could hand the state over.
func (c *Copier) HandOver(ctx context.Context, vmi *v1.VirtualMachineInstance) error {
	if !stateclaim.Arrived(vmi) {
		return nil
	}
	m := vmi.Status.MigrationState
	left, err := c.claim(ctx, vmi.Namespace, m.SourcePersistentStatePVCName)
	if err != nil || left == nil || left.DeletionTimestamp != nil || !stateclaim.IsOwned(vmi, left) {
		return err
	}
	var claims corev1.PersistentVolumeClaimList
	err = c.Live.List(ctx, &claims, client.InNamespace(vmi.Namespace), client.HasLabels{v1.StateClaimLabel})
	if err != nil {
		return fmt.Errorf("list the claims with the guest's state: %w", err)
	}
	old, kept := abandoned(vmi, left, claims.Items)
	if kept != "" {
		c.Events.Eventf(vmi, nil, corev1.EventTypeWarning, v1.ReasonStateLeft, "Migrate", "%s", kept)
		return nil
	}
	for _, claim := range old {
		if err := c.delete(ctx, claim); err != nil {
			return err
		}
	}
	c.Events.Eventf(vmi, nil, corev1.EventTypeNormal, "SuccessfulDelete", "Migrate",
		"Deleted claim %s: the guest's state has moved to claim %s", left.Name, m.TargetPersistentStatePVCName)
	return nil
}

// abandoned returns the claims that nobody needs after the guest's state has moved: copies first, and last the claim
// that the state has left. Or it returns why they are kept: what has the only state is not deleted. It is pure.
func abandoned(vmi *v1.VirtualMachineInstance, left *corev1.PersistentVolumeClaim,
	claims []corev1.PersistentVolumeClaim) (old []*corev1.PersistentVolumeClaim, kept string) {
	m := vmi.Status.MigrationState
	var copied *corev1.PersistentVolumeClaim
	for i := range claims {
		switch claim := &claims[i]; {
		case !stateclaim.IsOwned(vmi, claim) || claim.Name == left.Name:
		case claim.Name == m.TargetPersistentStatePVCName:
			copied = claim
		case isCopyOf(claim, left) && claim.DeletionTimestamp == nil:
			old = append(old, claim)
		}
	}
	if why := keeps(m, left, copied); why != "" {
		return nil, why
	}
	return append(old, left), ""
}

// keeps returns why the claim left is not deleted, although the target says that the guest's state has moved to the
// claim copied; or "" if left may be deleted. copied may be nil. It is pure.
func keeps(m *v1.VirtualMachineInstanceMigrationState, left, copied *corev1.PersistentVolumeClaim) string {
	kept := fmt.Sprintf("The claim %s is kept, and the VM's next start uses its state", left.Name)
	switch {
	case !m.Sends():
		return fmt.Sprintf("%s: the virt-handler of node %s has not written that it sends the guest, whatever node %s "+
			"says. If the guest's state is on the claim %s, delete %s",
			kept, m.SourceNode, m.TargetNode, m.TargetPersistentStatePVCName, left.Name)
	case copied == nil:
		return fmt.Sprintf("%s: the claim %s, to which the state has moved, is gone, or does not have the label %s and "+
			"the owner of such a claim any more", kept, m.TargetPersistentStatePVCName, v1.StateClaimLabel)
	case copied.DeletionTimestamp != nil:
		return fmt.Sprintf("%s: the claim %s, to which the state has moved, is being deleted", kept, copied.Name)
	case !isCopyOf(copied, left):
		return fmt.Sprintf("The claim %s is kept, and the VM's next start may use its state: the annotations %s and %s "+
			"of the claim %s do not name it, with its UID, although the guest's state has moved there. Somebody has "+
			"changed them, or has made %s anew. Delete the claim whose state is not wanted",
			left.Name, v1.CopyOfAnnotation, v1.CopyOfUIDAnnotation, copied.Name, left.Name)
	}
	return ""
}

// isCopyOf reports whether a migration made one claim to take the state of the other, and not of an earlier claim of
// the other's name: a user may have restored that one from a backup.
func isCopyOf(copied, from *corev1.PersistentVolumeClaim) bool {
	return copied.Annotations[v1.CopyOfAnnotation] == from.Name &&
		copied.Annotations[v1.CopyOfUIDAnnotation] == string(from.UID)
}
