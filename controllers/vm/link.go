package vm

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// This file has a running guest follow what its VM's template says of the links of its cards.

// links returns the interfaces of a VMI whose links are to follow the VM's template, and their states. It is
// pure. vmi may be nil.
func links(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance,
	rollout v1.RolloutStrategy) map[string]v1.InterfaceState {
	if vmi == nil || vmi.IsFinal() || vmi.DeletionTimestamp != nil || vm.DeletionTimestamp != nil {
		return nil
	}
	live, _ := vm.LinkUpdates(vmi, rollout)
	return live
}

// link writes into a VMI's spec the states of links that the VM's template says. virt-handler carries them out.
func (r *Reconciler) link(ctx context.Context, vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance,
	states map[string]v1.InterfaceState) error {
	if len(states) == 0 {
		return nil
	}
	linked := vmi.DeepCopy()
	for name, state := range states {
		linked.Spec.Domain.Devices.Interface(name).State = state
	}
	if vm.IsOfTemplate(vmi) && vm.IsPlaced(vmi) {
		linked.Annotations[v1.VMGenerationAnnotation] = strconv.FormatInt(vm.Generation, 10)
	}
	// The UID and the version: another VMI of the name, or one that has changed since, is looked at anew.
	err := kit.SortedRefusal(r.Client.Patch(ctx, linked,
		client.MergeFromWithOptions(vmi, client.MergeFromWithOptimisticLock{})))
	if err != nil {
		err = fmt.Errorf("write the states of links of VirtualMachineInstance %s: %w", vmi.Name, err)
		if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
			r.Events.Eventf(vm, vmi, corev1.EventTypeWarning, v1.ReasonFailedUpdate, "Link", "%s", err)
		}
		return err
	}
	var said []string
	for _, name := range slices.Sorted(maps.Keys(states)) {
		said = append(said, fmt.Sprintf("%s is %s", name, linked.Spec.Domain.Devices.Interface(name).Link()))
	}
	r.Events.Eventf(vm, vmi, corev1.EventTypeNormal, "SuccessfulUpdate", "Link",
		"The links of the guest's interfaces follow the template: %s", strings.Join(said, ", "))
	return nil
}
