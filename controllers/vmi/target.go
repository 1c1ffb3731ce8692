package vmi

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/api/validation"
	"github.com/kubeqemu/kubeqemu/controllers/images"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// TargetPod renders the pod to which a migration moves a VMI's guest, and returns what the pod may use.
func (r *Reconciler) TargetPod(ctx context.Context, vmi *v1.VirtualMachineInstance,
	migration *v1.VirtualMachineInstanceMigration) (*corev1.Pod, kit.Room, error) {
	config, err := r.podConfig(ctx)
	if err == nil {
		err = r.findWay(ctx, vmi, &config)
	}
	if err == nil {
		config.Present, err = r.presentImages(ctx, vmi)
	}
	if err != nil {
		return nil, kit.Room{}, err
	}
	// A host disk may have been permitted when the guest began, and not be so any more.
	if errs := validation.ValidateHostDisks(vmi, config.Cluster); len(errs) > 0 {
		return nil, kit.Room{}, apierrors.NewInvalid(v1.VirtualMachineInstanceGroupVersionKind.GroupKind(), vmi.Name, errs)
	}
	if m := vmi.Status.MigrationState; m != nil && m.MigrationConfiguration.PostCopy() &&
		len(vmi.Spec.Domain.Devices.Filesystems) == 0 {
		if config.PostCopy, err = r.offersFaults(ctx); err != nil {
			return nil, kit.Room{}, err
		}
	}
	companions, err := r.companions(ctx, vmi)
	if err != nil {
		return nil, kit.Room{}, err
	}
	if err := r.keep(ctx, vmi, &config); err != nil {
		return nil, kit.Room{}, err
	}
	defaulted := vmi.DeepCopy()
	v1.Default(defaulted)
	observeCompanions(defaulted, companions) // a pod that has just ended keeps the target off no node
	pod := targetPod(defaulted, migration, config)
	r.Follow.Note(metadataOf(vmi), pod)
	return pod, room(defaulted, config), nil
}

// presentImages returns the images of the guest's present pod. The target pod has the same ones, or a guest could find
// another disk than it had.
func (r *Reconciler) presentImages(ctx context.Context, vmi *v1.VirtualMachineInstance) (map[string]string, error) {
	if !hasImages(vmi) {
		return nil, nil
	}
	present := &corev1.Pod{}
	key := client.ObjectKey{Namespace: vmi.Namespace, Name: vmi.LauncherPod()}
	if err := r.Client.Get(ctx, key, present); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get the guest's pod: %w", err)
	}
	return images.Present(present), nil
}

// keep adds to config what a guest keeps of its present pod: the model of its CPU, and the address that passt gave it.
func (r *Reconciler) keep(ctx context.Context, vmi *v1.VirtualMachineInstance, config *PodConfig) error {
	cpu := vmi.Spec.Domain.CPU
	// Where a node is unlabelled, the virt-handlers alone compare the processors.
	keepsCPU, keepsAddress := cpu != nil && cpu.Model == v1.HostModel && !config.Unlabelled, hasPasst(vmi)
	if !keepsCPU && !keepsAddress {
		return nil
	}
	present := &corev1.Pod{}
	// The cache keeps neither selectors nor commands.
	if err := r.Live.Get(ctx,
		client.ObjectKey{Namespace: vmi.Namespace, Name: vmi.LauncherPod()}, present); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get the guest's pod: %w", err)
	}
	if keepsAddress {
		config.GuestAddress = guestAddress(present)
	}
	if keepsCPU {
		nodes, err := r.nodeLabels(ctx)
		if err != nil {
			return err
		}
		config.TargetCPU = targetCPU(vmi, present, nodes[vmi.Status.NodeName])
	}
	return nil
}

// offersFaults reports whether all nodes that take guests offer FaultResource. Where a virt-handler cannot hand
// it out, a pod that asks for the resource would find no place.
func (r *Reconciler) offersFaults(ctx context.Context) (bool, error) {
	nodes := corev1.NodeList{}
	for {
		if err := r.Live.List(ctx, &nodes, client.Limit(500), client.Continue(nodes.Continue)); err != nil {
			return false, fmt.Errorf("list nodes, for post-copy: %w", err)
		}
		for i := range nodes.Items {
			has := nodes.Items[i].Status.Allocatable
			if slots, faults := has[SlotResource], has[FaultResource]; !slots.IsZero() && faults.IsZero() {
				return false, nil
			}
		}
		if nodes.Continue == "" {
			return true, nil
		}
	}
}
