package vmi

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/handover"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

// policyDelay is the time between two looks at the MigrationPolicies of a VMI whose claims they may let move. Nobody
// tells when a policy changes: see migration.Policies.
const policyDelay = 30 * time.Second

// observeMoves says of each volume whether a migration copies its disk to a claim of its own. It returns after how long to
// look again, because a policy may change. During a migration, and while the policies cannot be read, the status stays as it
// was.
func (r *Reconciler) observeMoves(ctx context.Context, vmi *v1.VirtualMachineInstance) time.Duration {
	if vmi.Migration() != nil || r.Policy == nil {
		return 0
	}
	vm, err := r.machine(ctx, r.Client, vmi)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "find out whether disks may be copied")
		return policyDelay
	}
	candidates := copyable(vmi, vm)
	permitted, again := false, time.Duration(0)
	if len(candidates) > 0 {
		policy, err := r.Policy(ctx, vmi)
		if err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "find out whether disks may be copied")
			return policyDelay
		}
		permitted, again = policy.CopiesClaims(), policyDelay
	}
	for i := range vmi.Status.VolumeStatus {
		s := &vmi.Status.VolumeStatus[i]
		s.Moves = permitted && slices.Contains(candidates, s.Name)
	}
	return again
}

// moves is what the status says of a volume.
func moves(status *v1.VirtualMachineInstanceStatus, volume string) bool {
	return slices.ContainsFunc(status.VolumeStatus, func(s v1.VolumeStatus) bool { return s.Name == volume && s.Moves })
}

// copyable are the volumes whose disks a migration may copy, if a policy permits it: those of the VM's own
// dataVolumeTemplates, so that the old claim may be deleted, on file systems that only one node can use. It is pure; vm may
// be nil.
func copyable(vmi *v1.VirtualMachineInstance, vm *v1.VirtualMachine) []string {
	if vm == nil {
		return nil
	}
	var out []string
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		claim, info := v.Claim(), vmi.Status.ClaimInfo(v.Name)
		switch {
		case claim == nil || claim.Overlay || claim.ReadOnly || vm.DataVolumeTemplate(claim.Name) == nil:
		case info == nil || info.IsBlock() || slices.Contains(info.AccessModes, corev1.ReadWriteMany):
		case !isDisk(vmi, v.Name) || handover.OnlyRead(vmi, v.Name):
		default:
			out = append(out, v.Name)
		}
	}
	return out
}

func isDisk(vmi *v1.VirtualMachineInstance, volume string) bool {
	return slices.ContainsFunc(vmi.Spec.Domain.Devices.Disks, func(d v1.Disk) bool { return d.Name == volume })
}

// machine returns the VM that controls a VMI, or nil. A VM's VMI has the VM's name.
func (r *Reconciler) machine(ctx context.Context, from client.Reader, vmi *v1.VirtualMachineInstance) (*v1.VirtualMachine, error) {
	reference := owner.Reference(vmi, v1.VirtualMachineGroupVersionKind.GroupKind())
	if reference == nil || reference.Name != vmi.Name {
		return nil, nil
	}
	vm := &v1.VirtualMachine{}
	err := from.Get(ctx, client.ObjectKeyFromObject(vmi), vm)
	switch {
	case apierrors.IsNotFound(err), err == nil && vm.UID != reference.UID:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get VirtualMachine %s: %w", reference.Name, err)
	}
	return vm, nil
}

// unnotedDelay is the time between two looks at a VM that has not taken over which claims have its disks.
const unnotedDelay = time.Second

// letGo lets a deleted VMI go whose pods are gone. The VM must have in its status which claims have the disks of the VMI.
// Otherwise the next start would use other disks.
func (r *Reconciler) letGo(ctx context.Context, vmi *v1.VirtualMachineInstance) (time.Duration, error) {
	if hasClaims(vmi) {
		vm, err := r.machine(ctx, r.Live, vmi)
		if err != nil {
			return 0, err
		}
		if vm != nil && vm.DeletionTimestamp == nil && !noted(vm, vmi) {
			return unnotedDelay, nil
		}
	}
	return 0, r.release(ctx, vmi)
}

// hasClaims says whether it was seen that a claim has one of the VMI's disks.
func hasClaims(vmi *v1.VirtualMachineInstance) bool {
	return slices.ContainsFunc(vmi.Status.VolumeStatus, func(s v1.VolumeStatus) bool { return s.PersistentVolumeClaimInfo != nil })
}

// noted says whether a VM knows which claims have the disks of its VMI, as far as the VMI knows.
func noted(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) bool {
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		named, info := v.Claim(), vmi.Status.ClaimInfo(v.Name)
		if named != nil && !named.Overlay && info != nil && vm.Status.HeldBy(named.Name) != info.ClaimName {
			return false
		}
	}
	return true
}
