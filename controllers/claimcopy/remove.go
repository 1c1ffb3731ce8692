package claimcopy

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/stateclaim"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

// Remove deletes the claims that a failed migration has made. It keeps a claim that has the disk or the state: the
// guest may have ended on the target.
func (c *Copier) Remove(ctx context.Context, migration *v1.VirtualMachineInstanceMigration) error {
	var list corev1.PersistentVolumeClaimList
	err := c.Live.List(ctx, &list, client.InNamespace(migration.Namespace),
		client.MatchingLabels{v1.CopyOfLabel: string(migration.UID)})
	if err != nil {
		return fmt.Errorf("list the claims of the migration: %w", err)
	}
	for i := range list.Items {
		made := &list.Items[i]
		of := wishOf(made, migration)
		if made.DeletionTimestamp != nil || of == "" {
			continue
		}
		g, err := c.lookAtGuest(ctx, migration, made, of)
		if err != nil {
			return err
		}
		if g.countsOn(made) {
			continue
		}
		if err := c.delete(ctx, made); err != nil {
			return err
		}
	}
	return nil
}

// guest is what is known of a guest whose migration has failed, and of what the guest has on a claim.
type guest struct {
	migration *v1.VirtualMachineInstanceMigration
	// of is what the migration has made the claim for.
	of wish
	// vmi and vm are nil if they are gone.
	vmi *v1.VirtualMachineInstance
	vm  *v1.VirtualMachine
	// from is the claim that the guest's state was to leave. It is nil if the claim is gone, and for a disk.
	from *corev1.PersistentVolumeClaim
}

// lookAtGuest reads what is to be known before a claim is deleted that a migration has made.
func (c *Copier) lookAtGuest(ctx context.Context, migration *v1.VirtualMachineInstanceMigration,
	made *corev1.PersistentVolumeClaim, of wish) (g guest, err error) {
	namespace, name := migration.Namespace, migration.Spec.VMIName
	g.migration, g.of = migration, of
	g.vmi, err = find(ctx, c, namespace, name, &v1.VirtualMachineInstance{})
	switch {
	case err != nil:
	case of == ofState:
		g.from, err = c.claim(ctx, namespace, made.Annotations[v1.CopyOfAnnotation])
	default:
		g.vm, err = find(ctx, c, namespace, name, &v1.VirtualMachine{})
	}
	return g, err
}

// wishOf returns for which wish a migration has made a claim. It returns "" if somebody has taken the claim away from
// the guest, or has put the migration's label on another claim. The name tells it: nobody can change the name. A VMI
// without a VM has claims for its state only.
func wishOf(made *corev1.PersistentVolumeClaim, migration *v1.VirtualMachineInstanceMigration) wish {
	name := migration.Spec.VMIName
	vm := owner.Reference(made, v1.VirtualMachineGroupVersionKind.GroupKind())
	of := cmp.Or(vm, owner.Reference(made, v1.VirtualMachineInstanceGroupVersionKind.GroupKind()))
	switch {
	case of == nil || of.Name != name:
	case made.Name == v1.StateCopyName(name, of.UID, migration.UID):
		return ofState
	case vm != nil && v1.CopiedDisk(made) != "":
		return byPolicy
	}
	return ""
}

// countsOn reports whether somebody counts on what is on a claim. It is pure.
func (g *guest) countsOn(made *corev1.PersistentVolumeClaim) bool {
	if g.of == ofState {
		return g.countsOnState(made)
	}
	return g.countsOnDisk(made)
}

// countsOnDisk reports whether a claim has a disk of the VM that controls it. The VMI knows that if the disk is one of
// its own. Its word counts for more than the VM's, which follows the VMI.
func (g *guest) countsOnDisk(made *corev1.PersistentVolumeClaim) bool {
	of, disk := metav1.GetControllerOfNoCopy(made).UID, v1.CopiedDisk(made)
	if g.vmi != nil {
		if g.vmi.VolumeOn(made.Name) != nil {
			return true
		}
		vm := owner.Reference(g.vmi, v1.VirtualMachineGroupVersionKind.GroupKind())
		has := func(v v1.Volume) bool { return v.Claim() != nil && v.Claim().Name == disk }
		if vm != nil && vm.UID == of && slices.ContainsFunc(g.vmi.Spec.Volumes, has) {
			return false
		}
	}
	return g.vm != nil && g.vm.UID == of && g.vm.Status.Holds(made.Name)
}

// countsOnState reports whether a claim has the guest's state: the guest has ended at the target, or the claim that the
// state left is gone. Nothing counts on the claim of a migration of which it was not decided that the guest runs at the
// target. A claim without the guest's label, or that does not say what it is a copy of, has the state, too: somebody
// has changed the claim, and may want it.
func (g *guest) countsOnState(made *corev1.PersistentVolumeClaim) bool {
	if made.Labels[v1.StateClaimLabel] != v1.LabelOfName(g.migration.Spec.VMIName) {
		return true
	}
	if g.vmi != nil {
		m := g.vmi.Status.MigrationState
		if last := m != nil && m.MigrationUID == g.migration.UID; last && m.Decision != v1.DecisionTarget {
			return false
		} else if last && stateclaim.HasMoved(g.vmi) {
			return true
		}
	}
	return g.from == nil || g.from.DeletionTimestamp != nil
}
