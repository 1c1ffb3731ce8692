package vmi

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// noteBindings notes in the status what the cluster says of the plugins of the VMI's interfaces. Once the status
// reports a pod, that stays: a later change of the KubeVirt object concerns later guests.
func (r *Reconciler) noteBindings(ctx context.Context, t *turn) (time.Duration, error) {
	if t.pod != nil && reported(&t.before.Status) {
		return 0, nil
	}
	cluster, err := r.cluster(ctx)
	if err == nil {
		t.vmi.Status.Bindings = cluster.Bindings(&t.vmi.Spec)
	}
	return 0, err
}

// noteLosses notes in the status what a guest has lost for good.
func (r *Reconciler) noteLosses(_ context.Context, t *turn) (time.Duration, error) {
	observeSidecars(t.vmi, t.pod, r.now())
	return 0, nil
}

// noteMigratable writes into the status whether the guest can move to another node.
func (r *Reconciler) noteMigratable(_ context.Context, t *turn) (time.Duration, error) {
	status := &t.vmi.Status
	c := v1.VirtualMachineInstanceCondition{Type: v1.ConditionLiveMigratable, Status: metav1.ConditionTrue,
		Reason: v1.ReasonMigratable, Message: "the guest can move to another node"}
	status.MigrationMethod = t.vmi.Method()
	if reason, message := t.vmi.NotMigratable(); reason != "" {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reason, message
		status.MigrationMethod = ""
	}
	status.MigrationTransport = v1.TransportUnix
	status.SetCondition(c, r.now())
	return 0, nil
}

// notePod brings the status up to date with the pod.
func (r *Reconciler) notePod(_ context.Context, t *turn) (time.Duration, error) {
	vmi, pod, now := t.vmi, t.pod, r.now()
	vmi.Status.SetPhase(v1.Pending, now) // each phase has its time in the status
	observe(&vmi.Status, pod, now)
	observeDevices(vmi, pod)
	observeMemory(vmi, pod)
	observeReadiness(vmi, pod, now)
	return 0, nil
}

// observeMemory notes the guest's memory, and what its pod books besides it.
func observeMemory(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) {
	m := vmi.Spec.Domain.Memory
	if m == nil || m.Guest == nil {
		return
	}
	if vmi.Status.Memory == nil {
		vmi.Status.Memory = &v1.MemoryStatus{GuestAtBoot: ptr.To(m.Guest.DeepCopy())}
	}
	s := vmi.Status.Memory
	s.GuestCurrent, s.GuestRequested = ptr.To(m.Guest.DeepCopy()), ptr.To(m.Guest.DeepCopy())
	if q, err := resource.ParseQuantity(pod.Annotations[v1.MemoryOverheadAnnotation]); err == nil && q.Sign() >= 0 {
		s.MemoryOverhead = &q
	}
}
