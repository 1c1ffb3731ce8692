package vmi

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// This file follows a guest that moves to another node. Package migration makes the target pod, and the
// virt-handlers move the guest. The VMI's pod is the pod where the guest is to run: first the source's, and
// the target's from the decision on.

// TargetPod renders the pod to which a migration moves a VMI's guest, and returns what the pod may use.
func (r *Reconciler) TargetPod(ctx context.Context, vmi *v1.VirtualMachineInstance,
	migration *v1.VirtualMachineInstanceMigration) (*corev1.Pod, kit.Room, error) {
	config, err := r.podConfig(ctx)
	if err != nil {
		return nil, kit.Room{}, err
	}
	// A host disk may have been permitted when the guest began, and not be so any more.
	if errs := v1.ValidateHostDisks(vmi, config.Cluster); len(errs) > 0 {
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

// betweenDelay is the time between two looks at a guest whose pod has ended, and whose migration is not decided.
const betweenDelay = time.Second

// giveBackPatience is how long the target's virt-handler has to give a guest back that its QEMU did not let run.
const giveBackPatience = 30 * time.Second

// between reports whether the guest is in no pod for a while, so that the end of the VMI's pod is not the
// guest's. The pod may be nil. Package migration bounds the time by its decision.
func (r *Reconciler) between(vmi *v1.VirtualMachineInstance, pod *corev1.Pod, companions map[string]*corev1.Pod) bool {
	m := vmi.Migration()
	if m == nil {
		return false
	}
	switch {
	case m.Decision == "" && vmi.LauncherPod() == m.SourcePod:
		// The launcher has ended after it had sent everything, because somebody deleted its pod. The target may have
		// all of the guest.
		if pod == nil {
			last, known := r.ends.of(vmi)
			return !known || last.reason == string(control.ReasonMigrated)
		}
		last, ended := podEnd(pod)
		return ended && last.reason == string(control.ReasonMigrated)
	case m.Decision == v1.DecisionTarget && (!m.PostCopy() || neverRan(pod)) &&
		(m.TargetState == nil || m.TargetState.DomainReadyTimestamp == nil) && pod != nil && ended(pod):
		// The target's QEMU may not have let the guest run, which still is at the source then.
		source := companions[m.SourcePod]
		c := computeStatus(pod)
		return source != nil && !ended(source) && c != nil && c.State.Terminated != nil &&
			r.Clock.Since(c.State.Terminated.FinishedAt.Time).Abs() < giveBackPatience
	}
	return false
}

// neverRan reports whether a pod has ended, and its launcher says that the guest did not run there. A guest
// that left its source by post-copy is whole there then: a launcher that has not all of its memory ends with
// another reason.
func neverRan(pod *corev1.Pod) bool {
	if pod == nil {
		return false
	}
	last, ended := podEnd(pod)
	return ended && (last.reason == string(control.ReasonStartFailed) || last.reason == string(control.ReasonNeverStarted))
}

// companions returns the VMI's launcher pods that are there and do not have its guest. They are the target of a
// migration, or the source of one that has just ended.
func (r *Reconciler) companions(ctx context.Context, vmi *v1.VirtualMachineInstance) (map[string]*corev1.Pod, error) {
	found := map[string]*corev1.Pod{}
	for _, p := range vmi.Status.LauncherPods {
		if p.Name == vmi.LauncherPod() {
			continue
		}
		pod := &corev1.Pod{}
		key := client.ObjectKey{Namespace: vmi.Namespace, Name: p.Name}
		err := r.Client.Get(ctx, key, pod)
		if apierrors.IsNotFound(err) && (p.UID != "" || vmi.DeletionTimestamp != nil) {
			err = r.Live.Get(ctx, key, pod) // the cache may be behind
		}
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("get launcher pod %s: %w", p.Name, err)
		case owns(vmi, pod):
			found[p.Name] = pod
		}
	}
	return found, nil
}

// observeCompanions brings the status up to date with the VMI's other pods. A pod that has ended is dropped from
// it. It is pure.
func observeCompanions(vmi *v1.VirtualMachineInstance, found map[string]*corev1.Pod) {
	status := &vmi.Status
	var list []v1.LauncherPod
	for _, p := range status.LauncherPods {
		pod := found[p.Name]
		switch {
		case p.Name == vmi.LauncherPod(), pod == nil && p.UID == "" && awaited(vmi, p.Name):
			list = append(list, p)
		case pod == nil || ended(pod):
			delete(status.ActivePods, p.UID)
		default:
			list = append(list, v1.LauncherPod{Name: pod.Name, UID: pod.UID, IPs: podIPs(pod)})
			if pod.Spec.NodeName == "" {
				continue
			}
			if status.ActivePods == nil {
				status.ActivePods = map[types.UID]string{}
			}
			status.ActivePods[pod.UID] = pod.Spec.NodeName
		}
	}
	status.LauncherPods = list
}

// awaited reports whether a pod is the target of a migration, and is still to be made.
func awaited(vmi *v1.VirtualMachineInstance, pod string) bool {
	m := vmi.Migration()
	return m != nil && m.Decision == "" && m.TargetPod == pod
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// goneDelay is how much longer than its grace period a pod may take to end before its node counts as gone.
const goneDelay = 10 * time.Second

// holdUp reports whether a companion keeps a deleted VMI from going. A pod on a node that does not answer does
// not, if it is decided that its guest does not run there.
func (r *Reconciler) holdUp(vmi *v1.VirtualMachineInstance, companions map[string]*corev1.Pod) bool {
	for name, pod := range companions {
		m := vmi.Status.MigrationState
		elsewhere := m != nil && (m.Decision == v1.DecisionSource && name == m.TargetPod ||
			m.Decision == v1.DecisionTarget && name == m.SourcePod)
		if !elsewhere || pod.DeletionTimestamp == nil || r.Clock.Since(pod.DeletionTimestamp.Time) < goneDelay {
			return true
		}
	}
	return false
}

// removeCompanions deletes the VMI's other pods.
func (r *Reconciler) removeCompanions(ctx context.Context, found map[string]*corev1.Pod) error {
	for _, pod := range found {
		if pod.DeletionTimestamp != nil {
			continue
		}
		if err := r.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete launcher pod %s: %w", pod.Name, err)
		}
	}
	return nil
}

// observeMigratable writes into the status whether the guest can move to another node.
func observeMigratable(vmi *v1.VirtualMachineInstance, now metav1.Time) {
	c := v1.VirtualMachineInstanceCondition{Type: v1.ConditionLiveMigratable, Status: metav1.ConditionTrue,
		Reason: v1.ReasonMigratable, Message: "the guest can move to another node"}
	vmi.Status.MigrationMethod = vmi.Method()
	if reason, message := vmi.NotMigratable(); reason != "" {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reason, message
		vmi.Status.MigrationMethod = ""
	}
	vmi.Status.MigrationTransport = v1.TransportUnix
	vmi.Status.SetCondition(c, now)
}
