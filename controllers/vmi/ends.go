package vmi

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/internal/owner"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// ends keeps how the VMs of deleted pods ended. The kubelet writes a pod's last status and
// removes the pod within milliseconds. A reconcile that runs after both finds no pod, and
// could only guess.
type ends struct {
	mu    sync.Mutex
	byVMI map[types.UID]podsEnd
}

// podsEnd is how the VM in a pod ended.
type podsEnd struct {
	pod string
	end
}

func (e *ends) remember(vmi types.UID, pod string, last end) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byVMI == nil {
		e.byVMI = map[types.UID]podsEnd{}
	}
	e.byVMI[vmi] = podsEnd{pod, last}
}

// of returns how the VM ended in the pod that has the VMI's guest, or nil. How it ended in a pod that the guest has
// left says nothing.
func (e *ends) of(vmi *v1.VirtualMachineInstance) *end {
	e.mu.Lock()
	defer e.mu.Unlock()
	if last, ok := e.byVMI[vmi.UID]; ok && last.pod == vmi.LauncherPod() {
		return &last.end
	}
	return nil
}

func (e *ends) forget(vmi types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.byVMI, vmi)
}

// forgetEnd forgets how the VM of a VMI ended, which is in the VMI's status now.
func (r *Reconciler) forgetEnd(_ context.Context, t *turn) (time.Duration, error) {
	r.ends.forget(t.vmi.UID)
	return 0, nil
}

// lastWord returns the VM's end by the last status of its deleted pod, or else fallback.
func (w world) lastWord(fallback end) end {
	if w.last != nil {
		return *w.last
	}
	return fallback
}

// endWithPod ends a VMI whose pod is gone.
func (r *Reconciler) endWithPod(_ context.Context, t *turn) (time.Duration, error) {
	finish(&t.vmi.Status, t.lastWord(end{v1.Failed, v1.ReasonPodDeleted, "the launcher pod was deleted"}), r.now())
	return 0, nil
}

// takeDown keeps how a deleted pod's VM ended. Anybody can write a pod that names a VMI, so
// the VMI must exist and have the pod in its status.
func (r *Reconciler) takeDown(ctx context.Context, pod *corev1.Pod) {
	vmi := &v1.VirtualMachineInstance{}
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: nameOfVMI(pod)}, vmi)
	if err != nil || rejected(pod) || saidStranded(&vmi.Status) || pod.Name != vmi.LauncherPod() ||
		vmi.Status.ActivePods[pod.UID] == "" {
		return
	}
	if last, ended := podEnd(pod); ended {
		r.ends.remember(vmi.UID, pod.Name, last)
	}
}

// nameOfVMI returns the name of the VMI that a pod names as its own. A pod keeps its annotation when the
// garbage collector removes its owner.
func nameOfVMI(pod client.Object) string {
	if vmi := owner.Reference(pod, v1.VirtualMachineInstanceGroupVersionKind.GroupKind()); vmi != nil {
		return vmi.Name
	}
	return pod.GetAnnotations()[v1.DomainAnnotation]
}

// podEvents queues the VMI that a pod names. For a deleted pod it first calls takeDown.
func (r *Reconciler) podEvents() handler.EventHandler {
	named := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, pod client.Object) []reconcile.Request {
		name := nameOfVMI(pod)
		if name == "" {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: pod.GetNamespace(), Name: name}}}
	})
	return handler.Funcs{
		CreateFunc: named.Create, UpdateFunc: named.Update, GenericFunc: named.Generic,
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent,
			q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			if pod, ok := e.Object.(*corev1.Pod); ok {
				r.takeDown(ctx, pod)
			}
			named.Delete(ctx, e, q)
		},
	}
}

// podEnd returns how a VM ended, and reports whether its pod has ended. The launcher's termination message
// comes first. Without a message, the kubelet's report counts.
func podEnd(pod *corev1.Pod) (end, bool) {
	c := computeStatus(pod)
	switch {
	case !ended(pod):
		return end{}, false
	case c != nil && c.State.Running != nil && pod.Status.Reason == "":
		// Kubernetes says so of the pods of a node that is out of service, before it deletes them.
		return end{v1.Failed, v1.ReasonPodDeleted,
			"the launcher pod was deleted by force: its node is out of service, or gone"}, true
	case c == nil || c.State.Terminated == nil:
		// The pod was rejected or evicted before the launcher ran, or one of the containers before it failed.
		why := "the launcher pod failed before the launcher ran"
		if who := kit.WhoFailed(pod); who != "" {
			why += ": " + who
		}
		return end{v1.Failed, orElse(pod.Status.Reason, "PodFailed"), orElse(pod.Status.Message, why)}, true
	case pod.Status.Phase == corev1.PodFailed && pod.Status.Reason != "":
		// The kubelet ended the pod: Evicted, OutOfmemory after the kubelet's restart,
		// Terminated with its node. Whether the launcher could still write a message is
		// chance. And if the guest shut down in order, its user did not ask for that.
		return end{v1.Failed, pod.Status.Reason, pod.Status.Message}, true
	}
	t := c.State.Terminated
	var said control.Termination
	err := json.Unmarshal([]byte(t.Message), &said)
	known := err == nil && said.Reason.Known()
	// With cgroup v1 the kernel kills only the largest process, QEMU, and the launcher sees no
	// more than a SIGKILL. With v2 (memory.oom.group) the kernel kills both.
	if t.Reason == v1.ReasonOOMKilled &&
		(!known || (said.Reason == control.ReasonQEMUExited || said.Reason == control.ReasonPostCopyFailed) &&
			said.Signal == syscall.SIGKILL.String()) {
		return end{v1.Failed, v1.ReasonOOMKilled, "virt-launcher or QEMU used more memory than the pod's limit"}, true
	}
	if known {
		return saidEnd(said), true
	}
	if lost(t) {
		return end{v1.Failed, v1.ReasonLauncherKilled, "virt-launcher has ended, and QEMU with it, and nobody saw how: " +
			"its node, or the container runtime, was started anew"}, true
	}
	if signal := t.Signal; signal != 0 || t.ExitCode > 128 {
		if signal == 0 {
			signal = t.ExitCode - 128
		}
		return end{v1.Failed, v1.ReasonLauncherKilled,
			fmt.Sprintf("virt-launcher was killed by signal %d, and QEMU with it", signal)}, true
	}
	return end{v1.Failed, orElse(t.Reason, "Error"),
		fmt.Sprintf("virt-launcher exited with code %d without saying why %s", t.ExitCode, t.Message)}, true
}

// lost reports whether the container ended unseen, as in a power cut. containerd then reports exit code 255 and
// reason Unknown, the kubelet ContainerStatusUnknown.
func lost(t *corev1.ContainerStateTerminated) bool {
	return t.Reason == "ContainerStatusUnknown" || t.Reason == "Unknown" && t.ExitCode == 255
}

func saidEnd(said control.Termination) end {
	e := end{phase: v1.Failed, reason: string(said.Reason), message: said.Message}
	if said.Reason == control.ReasonMigrated { // and the VMI's guest is to be in this pod
		e.message = "the guest was lost as it moved to another pod: it left its pod, and did not go on in the other"
	} else if said.Succeeded() {
		e.phase = v1.Succeeded
	} else if last := strings.TrimSpace(said.Stderr); last != "" {
		e.message += "; QEMU's last words: " + last
	}
	return e
}

func orElse(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}
