// Package claimcopy replaces claims by others when guests move.
//
// A claim that only one node can use does not come along when its guest moves. So the guest gets another claim at the
// target, and QEMU copies there what the guest has. Three wishes lead to that:
//
//	the wish                                the new claim is   after a success    after a failure
//	a MigrationPolicy lets disks be copied  the migration's    the old one goes   the new one goes
//	the VM's template names a new claim     its user's         both stay          both stay
//	the guest has state that outlives it    the migration's    the old one goes   the new one goes
//
// A claim goes only if nobody counts on it: the other one has the disk or the state, and is there to stay. The status
// of the VM says which claim has which disk. The claims themselves say which of them has the state: see package
// stateclaim.
//
// The package has three acts: Make before the target's pod, Remove after a failure, and HandOver after a success.
// Package vm deletes what disks have left (leftclaims.go), because it writes the status of the VM.
package claimcopy

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/stateclaim"
)

// Copier makes and deletes claims.
type Copier struct {
	Client client.Client
	// Live reads past the cache.
	Live   client.Reader
	Events events.EventRecorder
}

// wish is why a claim is replaced.
type wish string

const (
	// byPolicy: a MigrationPolicy lets migrations copy the disk.
	byPolicy wish = "policy"
	// byUser: the VirtualMachine's template names the new claim.
	byUser wish = "user"
	// ofState: the claim has the guest's state.
	ofState wish = "state"
)

// replacement is a claim that a migration replaces by another.
type replacement struct {
	wish wish
	// what is on the claim, in words.
	what string
	// from and to are the names of the old claim and the new one.
	from, to string
	// of is the claim that the new one names: see v1.CopyOfAnnotation.
	of string
}

// replacements returns what the migration in a VMI's status replaces. It is pure.
func replacements(vmi *v1.VirtualMachineInstance) []replacement {
	var out []replacement
	for i := range vmi.Status.MigratedVolumes {
		m := &vmi.Status.MigratedVolumes[i]
		if m.SourcePVCInfo == nil || m.DestinationPVCInfo == nil {
			continue
		}
		r := replacement{wish: byUser, what: "the disk of volume " + m.VolumeName, from: m.From(), to: m.To()}
		if vmi.Makes(m) {
			r.wish, r.of = byPolicy, vmi.Spec.Volume(m.VolumeName).Claim().Name
		}
		out = append(out, r)
	}
	if m := vmi.Status.MigrationState; stateclaim.IsCopied(m) {
		from := m.SourcePersistentStatePVCName
		out = append(out, replacement{ofState, "the guest's state", from, m.TargetPersistentStatePVCName, from})
	}
	return out
}

// Disks returns between which claims a migration of a VMI copies disks. It is pure. A migration that was not made for
// it copies to a claim that a user named only if the guest could not move otherwise: a claim that cannot take the disk
// must not keep the guest on a node that is being drained.
func Disks(vmi *v1.VirtualMachineInstance,
	migration *v1.VirtualMachineInstanceMigration) []v1.StorageMigratedVolumeInfo {
	var out []v1.StorageMigratedVolumeInfo
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		has := vmi.Status.ClaimInfo(v.Name)
		if has == nil || v.Claim() == nil {
			continue
		}
		to := vmi.MovesTo(v.Name).DeepCopy()
		if to != nil && vmi.VolumeOn(to.ClaimName) != nil {
			to = nil // another disk of the guest is there, and the VM's controller is about to notice that
		}
		if migration.Annotations[v1.VolumeUpdateAnnotation] == "" && (has.IsShared() || vmi.CopiesClaim(v.Name)) {
			to = nil
		}
		switch {
		case to == nil && !vmi.CopiesClaim(v.Name):
			continue
		case to == nil:
			to = has.DeepCopy()
			to.ClaimName, to.Capacity = v1.CopyName(v.Claim().Name, migration.UID), nil
		}
		out = append(out,
			v1.StorageMigratedVolumeInfo{VolumeName: v.Name, SourcePVCInfo: has.DeepCopy(), DestinationPVCInfo: to})
	}
	return out
}

// State returns from which claim to which a migration takes a VMI's state: to the same one if both nodes can use it.
// Both names are empty if no claim has the state. It is pure.
func State(vmi *v1.VirtualMachineInstance, migration types.UID) (from, to string) {
	info := vmi.StateClaimInfo()
	switch {
	case info == nil:
		return "", ""
	case info.IsShared():
		return info.ClaimName, info.ClaimName
	}
	return info.ClaimName, v1.StateCopyName(vmi.Name, stateclaim.Owner(vmi).UID, migration)
}

// find reads an object, and returns nil if there is none. Of a name that no object can have there is none.
func find[T client.Object](ctx context.Context, c *Copier, namespace, name string, object T) (none T, err error) {
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return none, nil
	}
	err = c.Live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object)
	switch {
	case apierrors.IsNotFound(err):
		return none, nil
	case err != nil:
		return none, fmt.Errorf("read %s: %w", name, err)
	}
	return object, nil
}

// claim returns a claim, or nil if there is none.
func (c *Copier) claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	return find(ctx, c, namespace, name, &corev1.PersistentVolumeClaim{})
}

// delete deletes a claim that nobody counts on. If somebody has made the claim anew, the API server calls that a
// conflict, but no event of a claim brings a migration back. So the error is quoted and not wrapped: see
// kit.IgnoreConflict.
func (c *Copier) delete(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	err := c.Client.Delete(ctx, claim, client.Preconditions{UID: &claim.UID})
	switch {
	case apierrors.IsConflict(err):
		return fmt.Errorf("delete claim %s: it was made anew: %s", claim.Name, err)
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("delete claim %s: %w", claim.Name, err)
	}
	return nil
}
