package claimcopy

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/controllers/stateclaim"
)

// Make makes the new claims of the migration in a VMI's status, but for those that users named. why is why one of the
// new claims can never be there: somebody else's claim has the name, or a claim is gone.
func (c *Copier) Make(ctx context.Context, vmi *v1.VirtualMachineInstance,
	migration *v1.VirtualMachineInstanceMigration) (why string, err error) {
	for _, r := range replacements(vmi) {
		found, err := c.look(ctx, vmi, &r)
		if err != nil {
			return "", err
		}
		lacks, why := r.decide(vmi, found)
		if why != "" {
			return why, nil
		}
		if !lacks {
			continue
		}
		claim := r.claim(vmi, found.from)
		if err := kit.SortedRefusal(c.Client.Create(ctx, claim)); err != nil {
			return "", fmt.Errorf("create claim %s for %s: %w", claim.Name, r.what, err)
		}
		c.Events.Eventf(migration, claim, corev1.EventTypeNormal, "SuccessfulCreate", "Create",
			"Created claim %s, to which %s is copied", claim.Name, r.what)
	}
	return "", nil
}

// found is what there is of a replacement's claims. Each claim is nil if it is not there.
type found struct {
	// from is read only if there is no claim to, and the migration makes it.
	from, to *corev1.PersistentVolumeClaim
	// older is the claim of which from, with the guest's state, is itself a copy.
	older *corev1.PersistentVolumeClaim
	// vmGone: the VM to which the new claim would belong is gone, or is being deleted. The garbage collector would
	// delete the claim of such a VM.
	vmGone bool
}

// look reads the claims of a replacement.
func (c *Copier) look(ctx context.Context, vmi *v1.VirtualMachineInstance, r *replacement) (f found, err error) {
	if f.to, err = c.claim(ctx, vmi.Namespace, r.to); err != nil || f.to != nil || r.wish == byUser {
		return f, err
	}
	if f.from, err = c.claim(ctx, vmi.Namespace, r.from); err != nil || f.from == nil {
		return f, err
	}
	if of := f.from.Annotations[v1.CopyOfAnnotation]; r.wish == ofState && of != f.from.Name {
		if f.older, err = c.claim(ctx, vmi.Namespace, of); err != nil {
			return f, err
		}
	}
	of := stateclaim.Owner(vmi)
	if of.Kind != v1.VirtualMachineGroupVersionKind.Kind {
		f.vmGone = r.wish == byPolicy
		return f, nil
	}
	vm, err := find(ctx, c, vmi.Namespace, of.Name, &v1.VirtualMachine{})
	f.vmGone = vm == nil || vm.UID != of.UID || vm.DeletionTimestamp != nil
	return f, err
}

// decide reports whether the new claim is still to be made, and returns why it can never be there. It is pure.
func (r *replacement) decide(vmi *v1.VirtualMachineInstance, f found) (lacks bool, why string) {
	switch {
	case f.to == nil && r.wish == byUser:
		return false, fmt.Sprintf("the claim %q, to which %s is to be copied, is gone", r.to, r.what)
	case f.to != nil && !r.isIn(vmi, f.to):
		return false, fmt.Sprintf("a claim %q that is not the migration's is in the way; delete it", r.to)
	case f.to != nil && f.to.DeletionTimestamp != nil:
		return false, fmt.Sprintf("the claim %q, to which %s is to be copied, is being deleted", r.to, r.what)
	case f.to != nil:
		return false, ""
	case f.from == nil:
		return false, fmt.Sprintf("the claim %q with %s is gone", r.from, r.what)
	case f.vmGone:
		return false, "the VirtualMachine, to which the claim for " + r.what + " would belong, is gone"
	case r.wish == ofState:
		why = stays(vmi, f.from, f.older)
	}
	return why == "", why
}

// isIn reports whether a claim is the new claim: the one that a user named, or one that the migration has made.
func (r *replacement) isIn(vmi *v1.VirtualMachineInstance, to *corev1.PersistentVolumeClaim) bool {
	if r.wish == byUser {
		return true
	}
	return to.Labels[v1.CopyOfLabel] == string(vmi.Status.MigrationState.MigrationUID) &&
		stateclaim.Belongs(vmi, to) && (r.wish == byPolicy || stateclaim.IsOwned(vmi, to))
}

// stays returns why the guest's state cannot leave a claim, or "" if it can. The state does not leave a copy while the
// older claim is there to stay: after the move both would count, and the older one would win. HandOver has deleted
// the older claim if it could.
func stays(vmi *v1.VirtualMachineInstance, from, older *corev1.PersistentVolumeClaim) string {
	switch {
	case from.DeletionTimestamp != nil:
		return fmt.Sprintf("the claim %q with the guest's state is being deleted", from.Name)
	case !stateclaim.IsOwned(vmi, from):
		return fmt.Sprintf("the claim %q with the guest's state does not have the label %s and the owner of such a "+
			"claim any more", from.Name, v1.StateClaimLabel)
	case older != nil && older.DeletionTimestamp == nil && stateclaim.IsOwned(vmi, older):
		return fmt.Sprintf("the guest's state is on the claim %q, and the claim %q, which the state has left, is still "+
			"there: a start of the VM would use it. Delete the claim %q, and migrate the guest again",
			from.Name, older.Name, older.Name)
	}
	return ""
}

// claim returns the new claim, which is like the old one and has no volume yet. It goes with the VM. It is pure.
func (r *replacement) claim(vmi *v1.VirtualMachineInstance,
	from *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	made := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: vmi.Namespace, Name: r.to,
			Labels:          map[string]string{v1.CopyOfLabel: string(vmi.Status.MigrationState.MigrationUID)},
			Annotations:     map[string]string{v1.CopyOfAnnotation: r.of},
			OwnerReferences: []metav1.OwnerReference{stateclaim.Owner(vmi)}},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: from.Spec.AccessModes, VolumeMode: from.Spec.VolumeMode,
			StorageClassName: from.Spec.StorageClassName},
	}
	size := from.Spec.Resources.Requests.Storage()
	if r.wish == ofState {
		made.Labels[v1.StateClaimLabel] = v1.LabelOfName(vmi.Name)
		made.Annotations[v1.CopyOfUIDAnnotation] = string(from.UID)
		size = resource.NewQuantity(vmi.Spec.StateClaimBytes(), resource.BinarySI)
	}
	made.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: *size}
	return made
}
