// Package stateclaim says which claim has a guest's state, before the guest moves and afterwards. It is pure. Package
// claimcopy makes and deletes the claims.
//
// A claim that only one node can use stays where it is. A guest that moves gets a new claim at the target, the copy,
// and QEMU sends the state with the guest's memory. The copy counts once the claim of which it is a copy is being
// deleted. So that deletion, a single request, is what hands the state over: before it the next start has the old
// state, after it the new one, and never both.
package stateclaim

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/owner"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Owner returns what the claim with a VMI's state belongs to, and goes with: the VM, or the VMI if no VM has made it.
func Owner(vmi *v1.VirtualMachineInstance) metav1.OwnerReference {
	if vm := owner.Reference(vmi, v1.VirtualMachineGroupVersionKind.GroupKind()); vm != nil && vm.Name == vmi.Name {
		return *vm
	}
	return *metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)
}

// IsOwned reports whether a claim is one with state, and belongs to what the claims with a VMI's state belong to.
// Neither the label nor the owner alone will do. Without the owner, whoever may make claims could give a VM another
// state, and the claim would outlive the VM. A claim that is a VMI's needs the form of the name, too: virt-controller
// may delete no other claim of a VMI.
func IsOwned(vmi *v1.VirtualMachineInstance, claim *corev1.PersistentVolumeClaim) bool {
	of := Owner(vmi)
	return claim.Labels[v1.StateClaimLabel] != "" && Belongs(vmi, claim) &&
		(of.Kind == v1.VirtualMachineGroupVersionKind.Kind || strings.HasPrefix(claim.Name, v1.StateClaimLabel+"-"))
}

// Belongs reports whether a claim belongs to what the claims with a VMI's state belong to.
func Belongs(vmi *v1.VirtualMachineInstance, claim *corev1.PersistentVolumeClaim) bool {
	to := Owner(vmi)
	reference := owner.Reference(claim, schema.FromAPIVersionAndKind(to.APIVersion, to.Kind).GroupKind())
	return reference != nil && reference.UID == to.UID && reference.Name == to.Name
}

// Find returns the claim with a VMI's state among claims, or nil. A copy does not count while the claim of which it is
// a copy is there to stay. A claim that is being deleted comes last, and the one with the usual name first.
func Find(vmi *v1.VirtualMachineInstance, claims []corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	var own []*corev1.PersistentVolumeClaim
	for i := range claims {
		if IsOwned(vmi, &claims[i]) {
			own = append(own, &claims[i])
		}
	}
	stays := func(name string) bool {
		return slices.ContainsFunc(own,
			func(c *corev1.PersistentVolumeClaim) bool { return c.Name == name && c.DeletionTimestamp == nil })
	}
	usual := v1.StateClaimName(vmi.Name, Owner(vmi).UID)
	var found *corev1.PersistentVolumeClaim
	for _, c := range own {
		if of := c.Annotations[v1.CopyOfAnnotation]; of != "" && of != c.Name && stays(of) {
			continue
		}
		if found == nil || before(c, found, usual) {
			found = c
		}
	}
	return found
}

// before reports whether a claim counts for more than another.
func before(a, b *corev1.PersistentVolumeClaim, usual string) bool {
	switch aStays, bStays := a.DeletionTimestamp == nil, b.DeletionTimestamp == nil; {
	case aStays != bStays:
		return aStays
	case a.Name == usual, b.Name == usual:
		return a.Name == usual
	}
	return a.Name < b.Name
}

// IsCopied reports whether a migration takes the state to another claim. m may be nil.
func IsCopied(m *v1.VirtualMachineInstanceMigrationState) bool {
	return m != nil && m.TargetPersistentStatePVCName != "" &&
		m.TargetPersistentStatePVCName != m.SourcePersistentStatePVCName
}

// HasMoved reports whether the state of a VMI's guest is on the copy of its last migration. It is so once it is decided
// that the guest runs at the target: the target's launcher says that it has the guest only after all of the state is on
// the copy. The word of the target's node alone is not enough: the node may be in other hands. The source's
// virt-handler writes that it sends the guest before it does, so that every guest that has arrived has this word, too.
// Where the launcher has said that the guest never ran, the state stays where it was. Nothing has changed it.
func HasMoved(vmi *v1.VirtualMachineInstance) bool {
	return Arrived(vmi) && vmi.Status.MigrationState.Sends()
}

// Arrived reports whether the target has the guest, by the word of the target, and its own copy of the state.
func Arrived(vmi *v1.VirtualMachineInstance) bool {
	m := vmi.Status.MigrationState
	if !IsCopied(m) || m.Decision != v1.DecisionTarget {
		return false
	}
	if m.TargetState != nil && m.TargetState.DomainReadyTimestamp != nil {
		return true
	}
	c := vmi.Status.Condition(v1.ConditionReady)
	return !vmi.IsFinal() || c == nil ||
		c.Reason != string(control.ReasonStartFailed) && c.Reason != string(control.ReasonNeverStarted)
}
