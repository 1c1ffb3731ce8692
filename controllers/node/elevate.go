package node

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/elevate"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Kernel gives guests the real-time scheduler, which the kernel gives nobody in a restricted pod (package elevate).
type Kernel interface {
	Realtime(ctx context.Context, l elevate.Launcher, vcpus []int, hostCPUs int) error
}

// speed gives the guest's CPUs the real-time scheduler, if the VMI says so, and says in a condition how that went. It
// returns when to try again, or 0.
func (r *Reconciler) speed(ctx context.Context, object *v1.VirtualMachineInstance, launcher *sessions.Session,
	now metav1.Time) time.Duration {
	cpu := object.Spec.Domain.CPU
	state := launcher.State().State
	if cpu == nil || cpu.Realtime == nil || r.Kernel == nil || object.Status.Phase != v1.Running ||
		state != control.StateRunning && state != control.StatePaused {
		return 0
	}
	condition := v1.VirtualMachineInstanceCondition{Type: v1.ConditionRealtime, Status: metav1.ConditionTrue,
		Reason: v1.ReasonScheduled}
	vcpus, err := cpu.Realtime.CPUs(int(min(max(cpu.VCPUs(), 0), 255)))
	if err == nil {
		err = r.Kernel.Realtime(ctx, elevate.Of(object, launcher), vcpus, int(cpu.HostCPUs()))
	}
	if err != nil {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, v1.ReasonNotScheduled,
			control.Printable(err.Error(), maxMessage)
	}
	object.Status.SetCondition(condition, now)
	if err != nil && !errors.Is(err, elevate.ErrRefused) {
		return speedRetry
	}
	return 0
}

// speedRetry is the wait after an attempt that failed.
const speedRetry = 10 * time.Second

// reportNUMA writes into the status what is not as in KubeVirt: the guest's memory is not bound to nodes of the host.
func reportNUMA(object *v1.VirtualMachineInstance, now metav1.Time) {
	if !object.Spec.Domain.CPU.MapsNUMA() || object.Status.Phase != v1.Running {
		return
	}
	object.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionNUMAMemoryUnbound,
		Status: metav1.ConditionTrue, Reason: v1.ReasonFirstTouch,
		Message: "the guest's memory is not bound to the node's NUMA nodes: each of the guest's nodes takes its pages " +
			"from CPUs of its own, and where a NUMA node has no page left, from another"}, now)
}
