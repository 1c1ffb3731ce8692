package vm

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/datavolume"
)

// This file finds the volumes that the template puts on other claims than the guest has. Package migration copies
// the disks.

// volumeUpdate is what is known of volumes that the template puts on other claims.
type volumeUpdate struct {
	// pending are the volumes whose disks are still to be copied.
	pending []v1.StorageMigratedVolumeInfo
	// unready says what the migration waits for; empty if it may begin.
	unready string
	// after is how long to wait until the next look at claims that are not ready.
	after time.Duration
}

// maxLooks bounds how many claims are looked at in one round.
const maxLooks = 32

// findVolumeUpdate finds the volumes whose disks a migration is to copy. Without a VMI they are those that no
// migration copied. looks says whether to look at claims that are not known to be ready: the guest runs on.
func (r *Reconciler) findVolumeUpdate(ctx context.Context, vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance,
	rollout v1.RolloutStrategy, looks bool) volumeUpdate {
	if vmi == nil {
		return volumeUpdate{pending: vm.NotCopied()}
	}
	u := volumeUpdate{}
	u.pending, _ = vm.VolumeUpdates(vmi, rollout)
	var unready []string
	looked := 0
	for i := range u.pending {
		m := &u.pending[i]
		why := claimedBy(vm, vmi, m)
		if info := readyBefore(vm, m); info != nil && why == "" {
			m.DestinationPVCInfo = info
			continue
		}
		if !looks || vmi.IsFinal() || vmi.DeletionTimestamp != nil || looked == maxLooks {
			continue
		}
		looked++
		var claim *corev1.PersistentVolumeClaim
		if why == "" {
			claim, why = r.lookAtClaim(ctx, client.ObjectKey{Namespace: vm.Namespace, Name: m.To()})
		}
		if why == "" {
			why = unfit(vmi, m, claim)
		}
		if why != "" {
			unready = append(unready, fmt.Sprintf("volume %s: %s", m.VolumeName, why))
			continue
		}
		m.DestinationPVCInfo = v1.InfoOfClaim(claim)
	}
	if len(unready) > 0 {
		u.unready, u.after = texts(unready).String(), datavolume.Pause(r.waitedForClaims(vm))
	}
	return u
}

// readyBefore returns what the VM's status knows of a claim that was found ready to take a disk, or nil.
// Package migration looks at the claim once more.
func readyBefore(vm *v1.VirtualMachine, m *v1.StorageMigratedVolumeInfo) *v1.PersistentVolumeClaimInfo {
	for _, known := range vm.Status.PendingVolumes() {
		if known.IsSame(*m) && known.DestinationPVCInfo.IsReady() {
			return known.DestinationPVCInfo.DeepCopy()
		}
	}
	return nil
}

// claimedBy returns which other volume has, or is to have, the claim to which a disk is to be copied, or "" if
// there is none. It is pure.
func claimedBy(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance, m *v1.StorageMigratedVolumeInfo) string {
	to := m.To()
	if v := vmi.VolumeOn(to); v != nil && v.Name != m.VolumeName {
		return fmt.Sprintf("volume %s has claim %s", v.Name, to)
	}
	for _, v := range vm.Spec.Template.Spec.Volumes {
		if claim := v.Claim(); v.Name != m.VolumeName && claim != nil && vm.Status.HeldBy(claim.Name) == to {
			return fmt.Sprintf("the template puts volume %s on claim %s, too", v.Name, to)
		}
	}
	return ""
}

// waitedForClaims returns how long the VM has been waiting for claims.
func (r *Reconciler) waitedForClaims(vm *v1.VirtualMachine) time.Duration {
	if c := vm.Status.Condition(v1.ConditionVolumesChange); c != nil && c.Status == metav1.ConditionFalse {
		return r.Clock.Since(c.LastTransitionTime.Time)
	}
	return 0
}

// lookAtClaim reads a claim to which a disk is to be copied. why says why the claim cannot be used yet.
func (r *Reconciler) lookAtClaim(ctx context.Context,
	key client.ObjectKey) (claim *corev1.PersistentVolumeClaim, why string) {
	state, err := datavolume.Look(ctx, r.Live, key)
	switch {
	case err != nil:
		return nil, datavolume.Short(err.Error())
	case state.Volume != nil && state.Progress.Unbound:
		return nil, fmt.Sprintf("DataVolume %s waits for its first consumer, which a migration cannot be: name a claim without a DataVolume, or give the DataVolume the annotation cdi.kubevirt.io/storage.bind.immediate.requested", key.Name)
	case state.Volume != nil && !state.Progress.Done:
		return nil, state.Progress.Message
	}
	claim = &corev1.PersistentVolumeClaim{}
	switch err := r.Live.Get(ctx, key, claim); {
	case apierrors.IsNotFound(err):
		return nil, fmt.Sprintf("there is no claim %s", key.Name)
	case err != nil:
		return nil, fmt.Sprintf("get claim %s: %s", key.Name, datavolume.Short(err.Error()))
	}
	return claim, ""
}

// unfit returns why a disk cannot be copied to a claim, or "" if it can. It is pure.
func unfit(vmi *v1.VirtualMachineInstance, m *v1.StorageMigratedVolumeInfo,
	claim *corev1.PersistentVolumeClaim) string {
	has, to := vmi.Status.ClaimInfo(m.VolumeName), v1.InfoOfClaim(claim)
	switch {
	case claim.DeletionTimestamp != nil:
		return fmt.Sprintf("claim %s is being deleted", claim.Name)
	case has == nil:
		return fmt.Sprintf("nothing is known yet of claim %s", m.From())
	case to.IsBlock():
		return fmt.Sprintf("a disk can be copied to a claim of volumeMode Filesystem only, and claim %s is of Block",
			claim.Name)
	}
	if from, size := has.Requests.Storage(), to.Requests.Storage(); size.Cmp(*from) < 0 {
		return fmt.Sprintf("claim %s asks for %s, and claim %s, which has the disk, for %s",
			claim.Name, size, has.ClaimName, from)
	}
	return ""
}

// state returns what the VM's status says of the volumes to be copied, or nil if there are none.
func (u *volumeUpdate) state() *v1.VolumeUpdateState {
	if len(u.pending) == 0 {
		return nil
	}
	return &v1.VolumeUpdateState{VolumeMigrationState: &v1.VolumeMigrationState{MigratedVolumes: u.pending}}
}

// condition returns what the VM's conditions say of volumes that are still to be copied, or nil. It is pure.
func (u *volumeUpdate) condition(vmi *v1.VirtualMachineInstance) *v1.VirtualMachineInstanceCondition {
	if len(u.pending) == 0 {
		return nil
	}
	first := &u.pending[0]
	disks := fmt.Sprintf("the disk of volume %s, from claim %s to claim %s", first.VolumeName, first.From(), first.To())
	if more := len(u.pending) - 1; more > 0 {
		disks += fmt.Sprintf(", and %d more", more)
	}
	if vmi == nil {
		return &v1.VirtualMachineInstanceCondition{Type: v1.ConditionManualRecoveryRequired, Status: metav1.ConditionTrue,
			Reason:  v1.ReasonVolumesNotCopied,
			Message: "the guest ended before a migration had copied " + disks + ": name the old claim in the template again to start with its disk, or set spec.updateVolumesStrategy to Replacement to start with the new claim as it is"}
	}
	c := &v1.VirtualMachineInstanceCondition{Type: v1.ConditionVolumesChange, Status: metav1.ConditionTrue,
		Reason: v1.ReasonVolumesToCopy, Message: "a migration copies " + disks}
	switch why := vmi.StaysPut(); {
	case u.unready != "":
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1.ReasonVolumesUnready,
			"a migration is to copy "+disks+", and waits: "+u.unready
	case why != "":
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1.ReasonVolumesUnready,
			"a migration is to copy "+disks+", and waits: "+why
	case vmi.Migration() == nil && failedLast(vmi) != "":
		c.Message = "a migration is to copy " + disks + "; the last one failed: " + failedLast(vmi)
	}
	return c
}

// failedLast returns why the last migration of a guest failed, or "" if it did not fail.
func failedLast(vmi *v1.VirtualMachineInstance) string {
	if m := vmi.Status.MigrationState; m != nil && m.Completed && m.Failed {
		return m.FailureReason
	}
	return ""
}
