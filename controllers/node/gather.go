package node

import (
	"context"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Guests of a namespace that come to a node at the same time are started at the same time. A
// guest that runs takes all CPU time that there is, so that each start after it
// takes longer: where many come, after a power cut say, the last is up much sooner
// if the first waits for the others. A guest that comes alone waits for nobody.
const (
	// gatherMost is how long a launcher that is ready waits for others at most.
	gatherMost = 5 * time.Second
	// gatherYoung is how long after its creation a VMI is waited for: one whose
	// image cannot be pulled, say, holds up nobody.
	gatherYoung = 30 * time.Second
	// gatherLook is between two looks.
	gatherLook = 250 * time.Millisecond
)

// gather returns how long a launcher that is ready waits before it is asked about
// again; 0 to start its guest.
func (r *Reconciler) gather(ctx context.Context, launcher *session) (time.Duration, error) {
	if r.Clock.Since(launcher.since) >= gatherMost {
		return 0, nil
	}
	var vmis v1.VirtualMachineInstanceList
	// Only those of its namespace: a tenant whose guests never come, for want of an
	// image, say, delays nobody else's.
	if err := r.Client.List(ctx, &vmis, client.InNamespace(launcher.pod.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return 0, err
	}
	now := r.Clock.Now()
	comes := func(o v1.VirtualMachineInstance) bool {
		return onItsWay(&o, r.NodeName, now) && r.session(&o) == nil
	}
	if !slices.ContainsFunc(vmis.Items, comes) {
		return 0, nil
	}
	return gatherLook, nil
}

// onItsWay says whether a VMI's pod was just bound to the node, and its launcher is
// to be expected. It is pure.
func onItsWay(object *v1.VirtualMachineInstance, node string, now time.Time) bool {
	if object.Status.NodeName != node || object.DeletionTimestamp != nil || now.Sub(object.CreationTimestamp.Time) > gatherYoung {
		return false
	}
	return object.Status.Phase == v1.Scheduling || object.Status.Phase == v1.Scheduled
}

// toStart says whether a launcher waits for a guest that is wanted.
func toStart(object *v1.VirtualMachineInstance, launcher *session) bool {
	return launcher.State().State == control.StateWaiting && object.DeletionTimestamp == nil
}
