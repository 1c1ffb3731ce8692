// Package stateclaim says which claim has a guest's state, and what becomes of the claim when the guest moves.
//
// A claim that only one node can use stays where it is. A guest that moves gets a new claim at the target, the copy, and QEMU sends
// the state with the guest's memory. The copy counts once the claim of which it is a copy is being deleted. So that deletion, a single
// request, is what hands the state over: before it the next start has the old state, after it the new one, and never both.
package stateclaim

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/owner"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Owner is what the claim with a VMI's state belongs to, and goes with: the VM, or the VMI if no VM has made it.
func Owner(vmi *v1.VirtualMachineInstance) metav1.OwnerReference {
	if vm := owner.Reference(vmi, v1.VirtualMachineGroupVersionKind.GroupKind()); vm != nil && vm.Name == vmi.Name {
		return *vm
	}
	return *metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)
}

// IsOwned says whether a claim is one with state, and belongs to what the claims with a VMI's state belong to. Neither the label nor the owner
// alone will do. Without the owner, whoever may make claims could give a VM another state, and the claim would outlive the VM. A claim that is a VMI's
// needs the form of the name, too: virt-controller may delete no other claim of a VMI.
func IsOwned(vmi *v1.VirtualMachineInstance, claim *corev1.PersistentVolumeClaim) bool {
	of := Owner(vmi)
	return claim.Labels[v1.StateClaimLabel] != "" && belongs(claim, of) &&
		(of.Kind == v1.VirtualMachineGroupVersionKind.Kind || strings.HasPrefix(claim.Name, v1.StateClaimLabel+"-"))
}

func belongs(claim *corev1.PersistentVolumeClaim, to metav1.OwnerReference) bool {
	reference := owner.Reference(claim, schema.FromAPIVersionAndKind(to.APIVersion, to.Kind).GroupKind())
	return reference != nil && reference.UID == to.UID && reference.Name == to.Name
}

// Find is the claim with a VMI's state among claims, or nil. A copy does not count while the claim of which it is a copy is there to stay.
// A claim that is being deleted comes last, and the one with the usual name first. Find is pure.
func Find(vmi *v1.VirtualMachineInstance, claims []corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	var own []*corev1.PersistentVolumeClaim
	for i := range claims {
		if IsOwned(vmi, &claims[i]) {
			own = append(own, &claims[i])
		}
	}
	stays := func(name string) bool {
		return slices.ContainsFunc(own, func(c *corev1.PersistentVolumeClaim) bool { return c.Name == name && c.DeletionTimestamp == nil })
	}
	usual := v1.StateClaimName(vmi.Name, Owner(vmi).UID)
	var found *corev1.PersistentVolumeClaim
	for _, c := range own {
		if of := c.Annotations[v1.StateCopyOfAnnotation]; of != "" && of != c.Name && stays(of) {
			continue
		}
		if found == nil || before(c, found, usual) {
			found = c
		}
	}
	return found
}

// before says whether a claim counts for more than another.
func before(a, b *corev1.PersistentVolumeClaim, usual string) bool {
	switch aStays, bStays := a.DeletionTimestamp == nil, b.DeletionTimestamp == nil; {
	case aStays != bStays:
		return aStays
	case a.Name == usual, b.Name == usual:
		return a.Name == usual
	}
	return a.Name < b.Name
}

// Move says from which claim to which a migration takes a VMI's state: to the same one if both nodes can use it. Both names are empty if no claim has
// the state. Move is pure.
func Move(vmi *v1.VirtualMachineInstance, migration types.UID) (from, to string) {
	info := vmi.StateClaimInfo()
	switch {
	case info == nil:
		return "", ""
	case slices.Contains(info.AccessModes, corev1.ReadWriteMany):
		return info.ClaimName, info.ClaimName
	}
	return info.ClaimName, v1.StateCopyName(vmi.Name, Owner(vmi).UID, migration)
}

// IsCopied says whether a migration takes the state to another claim. m may be nil.
func IsCopied(m *v1.VirtualMachineInstanceMigrationState) bool {
	return m != nil && m.TargetPersistentStatePVCName != "" && m.TargetPersistentStatePVCName != m.SourcePersistentStatePVCName
}

// Copy is the claim that takes the state of a guest that moves away from another claim. Copy is pure.
func Copy(vmi *v1.VirtualMachineInstance, from *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	m := vmi.Status.MigrationState
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: vmi.Namespace, Name: m.TargetPersistentStatePVCName, OwnerReferences: []metav1.OwnerReference{Owner(vmi)},
			Labels:      map[string]string{v1.StateClaimLabel: v1.LabelOfName(vmi.Name), v1.StateCopyLabel: string(m.MigrationUID)},
			Annotations: map[string]string{v1.StateCopyOfAnnotation: from.Name, v1.StateCopyOfUIDAnnotation: string(from.UID)}},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: from.Spec.AccessModes, VolumeMode: from.Spec.VolumeMode, StorageClassName: from.Spec.StorageClassName,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: *resource.NewQuantity(vmi.Spec.StateClaimBytes(), resource.BinarySI)}}},
	}
}

// HasMoved says whether the state of a VMI's guest is on the copy of its last migration. It is so once it is decided that the guest runs at the
// target: the target's launcher says that it has the guest only after all of the state is on the copy. The word of the target's node alone is not
// enough: the node may be in other hands. The source's virt-handler writes that it sends the guest before it does, so that every guest that has
// arrived has this word, too. Where the launcher has said that the guest never ran, the state stays where it was. Nothing has changed it.
func HasMoved(vmi *v1.VirtualMachineInstance) bool {
	return arrived(vmi) && vmi.Status.MigrationState.Sends()
}

// arrived says whether the target has the guest, by the word of the target, and its own copy of the state.
func arrived(vmi *v1.VirtualMachineInstance) bool {
	m := vmi.Status.MigrationState
	if !IsCopied(m) || m.Decision != v1.DecisionTarget {
		return false
	}
	if m.TargetState != nil && m.TargetState.DomainReadyTimestamp != nil {
		return true
	}
	c := vmi.Status.Condition(v1.ConditionReady)
	return !vmi.IsFinal() || c == nil || c.Reason != string(control.ReasonStartFailed) && c.Reason != string(control.ReasonNeverStarted)
}

// Handed is what has become of the claim that a guest's state has left.
type Handed struct {
	// Deleted is the claim's name; empty if nothing was deleted.
	Deleted string
	// Kept is why the claim is still there; empty if it was deleted, or nothing has left it.
	Kept string
}

// HandOver deletes the claim that the state of a VMI's guest has left. The copy must be there: what has the only state is not deleted.
func HandOver(ctx context.Context, to client.Client, live client.Reader, vmi *v1.VirtualMachineInstance) (Handed, error) {
	if !arrived(vmi) {
		return Handed{}, nil
	}
	m := vmi.Status.MigrationState
	left, err := get(ctx, live, vmi, m.SourcePersistentStatePVCName)
	if err != nil || left == nil || left.DeletionTimestamp != nil {
		return Handed{}, err
	}
	copied, err := get(ctx, live, vmi, m.TargetPersistentStatePVCName)
	if err != nil {
		return Handed{}, err
	}
	if why := keeps(m, left, copied); why != "" {
		return Handed{Kept: why}, nil
	}
	if err := deleteOtherCopies(ctx, to, live, vmi, left, copied.Name); err != nil {
		return Handed{}, err
	}
	if err := to.Delete(ctx, left, client.Preconditions{UID: &left.UID}); client.IgnoreNotFound(err) != nil {
		return Handed{}, fmt.Errorf("delete claim %s, which the guest's state has left: %w", left.Name, err)
	}
	return Handed{Deleted: left.Name}, nil
}

// keeps is why a claim is not deleted although the target says that the guest's state has left it for a copy, which may be nil; empty if the claim goes.
// It is pure.
func keeps(m *v1.VirtualMachineInstanceMigrationState, left, copied *corev1.PersistentVolumeClaim) string {
	kept := fmt.Sprintf("The claim %s is kept, and the VM's next start uses its state", left.Name)
	switch {
	case !m.Sends():
		return fmt.Sprintf("%s: the virt-handler of node %s has not written that it sends the guest, whatever node %s says. "+
			"If the guest's state is on the claim %s, delete %s", kept, m.SourceNode, m.TargetNode, m.TargetPersistentStatePVCName, left.Name)
	case copied == nil:
		return fmt.Sprintf("%s: the claim %s, to which the state has moved, is gone, or does not have the label %s and the owner of such a claim any more",
			kept, m.TargetPersistentStatePVCName, v1.StateClaimLabel)
	case copied.DeletionTimestamp != nil:
		return fmt.Sprintf("%s: the claim %s, to which the state has moved, is being deleted", kept, copied.Name)
	case !isCopyOf(copied, left):
		return fmt.Sprintf("The claim %s is kept, and the VM's next start may use its state: the annotations %s and %s of the claim %s do not name it, with its UID, "+
			"although the guest's state has moved there. Somebody has changed them, or has made %s anew. Delete the claim whose state is not wanted",
			left.Name, v1.StateCopyOfAnnotation, v1.StateCopyOfUIDAnnotation, copied.Name, left.Name)
	}
	return ""
}

// deleteOtherCopies deletes the copies of a claim that migrations have left which failed, but for one copy. They would count, too, once that claim is
// gone.
func deleteOtherCopies(ctx context.Context, to client.Client, live client.Reader, vmi *v1.VirtualMachineInstance, of *corev1.PersistentVolumeClaim, but string) error {
	var list corev1.PersistentVolumeClaimList
	if err := live.List(ctx, &list, client.InNamespace(vmi.Namespace), client.HasLabels{v1.StateClaimLabel}); err != nil {
		return fmt.Errorf("list the claims with the guest's state: %w", err)
	}
	for i := range list.Items {
		other := &list.Items[i]
		if other.Name == but || other.Name == of.Name || !isCopyOf(other, of) || other.DeletionTimestamp != nil || !IsOwned(vmi, other) {
			continue
		}
		if err := to.Delete(ctx, other, client.Preconditions{UID: &other.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete claim %s, which a failed migration has left: %w", other.Name, err)
		}
	}
	return nil
}

// isCopyOf says whether a migration made one claim to take the state of the other, and not of an earlier claim of the other's name: a user may have
// restored that one from a backup.
func isCopyOf(copied, from *corev1.PersistentVolumeClaim) bool {
	return copied.Annotations[v1.StateCopyOfAnnotation] == from.Name && copied.Annotations[v1.StateCopyOfUIDAnnotation] == string(from.UID)
}

// get returns a claim with state that belongs to the same as the VMI's, or nil.
func get(ctx context.Context, from client.Reader, vmi *v1.VirtualMachineInstance, name string) (*corev1.PersistentVolumeClaim, error) {
	claim := &corev1.PersistentVolumeClaim{}
	err := from.Get(ctx, client.ObjectKey{Namespace: vmi.Namespace, Name: name}, claim)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get claim %s: %w", name, err)
	case !IsOwned(vmi, claim):
		return nil, nil
	}
	return claim, nil
}
