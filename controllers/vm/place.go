package vm

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// This file has a running guest follow what its VM's template says of nodes. Nothing moves the guest
// because of it: the next migration heeds it, as in KubeVirt.

// staged returns why the guest of a VMI needs a restart to be as the VM's template says, or "" if it needs
// none. It is pure. vmi may be nil.
func staged(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance, config *v1.KubeVirtConfiguration) string {
	rollout := config.Rollout()
	if vmi == nil || vmi.IsFinal() || vmi.DeletionTimestamp != nil {
		return ""
	}
	if !vm.IsOfTemplate(vmi) {
		return changed(vm, vmi, config)
	}
	if _, staged := vm.VolumeUpdates(vmi, rollout); len(staged) > 0 {
		return fmt.Sprintf("the template puts volume %s on another claim; the change holds from the next start on, and nothing is copied. With spec.updateVolumesStrategy Migration, a migration copies disks that the guest has written to, on file systems", staged[0].VolumeName)
	}
	if _, staged := vm.LinkUpdates(vmi, rollout); staged != "" {
		return staged
	}
	if vm.IsPlaced(vmi) {
		return ""
	}
	const placement = "the template's nodeSelector, affinity or tolerations were changed; "
	if rollout == v1.RolloutStage {
		return placement + "the change holds from the next start on"
	}
	if why := staysPut(vmi); why != "" {
		return placement + "the change holds from the next start on, as " + why
	}
	return ""
}

// changed returns which fields of the template have changed since the guest was started, and what to do.
func changed(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance, config *v1.KubeVirtConfiguration) string {
	what := "the template's spec was changed"
	if vm.Spec.Instancetype != nil || vm.Spec.Preference != nil {
		what = "the template's spec, the instancetype or the preference was changed"
	}
	if fields := vm.ChangedFields(vmi, config); len(fields) > 0 {
		what += fmt.Sprintf(" (%s)", fields)
	}
	return bounded(fmt.Sprintf("%s; the change holds from the next start on: %s", what, vm.RestartAdvice()))
}

// staysPut returns why a guest cannot follow what its template says of nodes, or "" if it can.
func staysPut(vmi *v1.VirtualMachineInstance) string {
	c := vmi.Status.Condition(v1.ConditionLiveMigratable)
	switch {
	case vmi.Status.Phase != v1.Running:
		return "the guest does not run yet"
	case c == nil:
		return "it is not known yet whether the guest can migrate"
	case c.Status != metav1.ConditionTrue:
		return "the guest cannot migrate: " + c.Message
	}
	return ""
}

// follows reports whether the guest of a VMI is to have the placement of the VM's template, and has another. It
// is pure.
func follows(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance, rollout v1.RolloutStrategy) bool {
	if rollout != v1.RolloutLiveUpdate || vmi == nil || vmi.IsFinal() || vmi.DeletionTimestamp != nil ||
		vm.DeletionTimestamp != nil || vm.IsPlaced(vmi) {
		return false
	}
	// Another instancetype may bring another nodeSelector, and holds from the next start on.
	return staysPut(vmi) == "" && (vm.Spec.Instancetype == nil || vm.IsOfTemplate(vmi))
}

// place gives a running VMI the placement of the VM's template.
func (r *Reconciler) place(ctx context.Context, vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance,
	rollout v1.RolloutStrategy) error {
	if !follows(vm, vmi, rollout) {
		return nil
	}
	chosen, err := r.choose(ctx, vm)
	if err != nil {
		return err
	}
	expanded, errs := expand(chosen, vm)
	if len(errs) > 0 {
		return fmt.Errorf("%w: %w", errRefused, errs.ToAggregate())
	}
	placed := vmi.DeepCopy()
	placed.Spec.Place(expanded.Spec.Template.DeepCopy().Spec.Placement())
	placed.Annotations[v1.PlacementHashAnnotation] = vm.PlacementHash()
	if vm.IsOfTemplate(vmi) {
		placed.Annotations[v1.VMGenerationAnnotation] = strconv.FormatInt(vm.Generation, 10)
	}
	// The UID and the version: another VMI of the name, or one that has changed since, is looked at anew.
	err = kit.SortedRefusal(r.Client.Patch(ctx, placed,
		client.MergeFromWithOptions(vmi, client.MergeFromWithOptimisticLock{})))
	if err != nil {
		err = fmt.Errorf("write nodeSelector, affinity and tolerations of VirtualMachineInstance %s: %w", vmi.Name, err)
		if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
			r.Events.Eventf(vm, vmi, corev1.EventTypeWarning, v1.ReasonFailedUpdate, "Place", "%s", err)
		}
		return err
	}
	if !equality.Semantic.DeepEqual(placed.Spec.Placement(), vmi.Spec.Placement()) {
		r.Events.Eventf(vm, vmi, corev1.EventTypeNormal, "SuccessfulUpdate", "Place",
			"The next migration of the guest heeds the template's nodeSelector, affinity and tolerations")
	}
	return nil
}
