package migration

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kubeqemu/kubeqemu/api/nodefit"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// This file has the guests of a node move that has the taint of the configuration's nodeDrainTaintKey, as in KubeVirt. The taint ends no guest, and
// does not ask other programs to bring guests elsewhere.

// drained reports whether the guest's node has the drain taint. cluster is asked only for a node with taints.
func drained(ctx context.Context, nodes client.Reader, vmi *v1.VirtualMachineInstance, cluster func(context.Context) (*v1.KubeVirtConfiguration, error)) (bool, error) {
	if vmi.Status.NodeName == "" || vmi.Status.Phase != v1.Running || vmi.DeletionTimestamp != nil || !vmi.Spec.EvictionStrategy.Moves() {
		return false, nil
	}
	node := &corev1.Node{}
	if err := nodes.Get(ctx, client.ObjectKey{Name: vmi.Status.NodeName}, node, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("get node %s: %w", vmi.Status.NodeName, err)
	}
	if len(node.Spec.Taints) == 0 {
		return false, nil
	}
	config, err := cluster(ctx)
	if err != nil {
		return false, err
	}
	return nodefit.Drained(node, config.DrainTaintKey(), vmi.Spec.Tolerations), nil
}

func (m *Mover) drained(ctx context.Context, vmi *v1.VirtualMachineInstance) (bool, error) {
	return drained(ctx, m.Client, vmi, func(ctx context.Context) (*v1.KubeVirtConfiguration, error) {
		spec, err := m.KubeVirt(ctx)
		if err != nil {
			return nil, err
		}
		return &spec.Configuration, nil
	})
}

// toMove says whether a guest may be to move. If that cannot be told, Reconcile tells why.
func (m *Mover) toMove(ctx context.Context, vmi *v1.VirtualMachineInstance) bool {
	if m.outdated(vmi) || causeOf(vmi, false) != nil {
		return true
	}
	leaves, err := m.drained(ctx, vmi)
	return err != nil || causeOf(vmi, leaves) != nil
}

// itsGuests queues the guests of a node.
func (m *Mover) itsGuests(ctx context.Context, node client.Object) []reconcile.Request {
	return m.those(ctx, func(vmi *v1.VirtualMachineInstance) bool {
		return vmi.Status.NodeName == node.GetName() && vmi.Spec.EvictionStrategy.Moves()
	})
}

// all queues every guest that may be to move: the KubeVirt object may say something else.
func (m *Mover) all(ctx context.Context, _ client.Object) []reconcile.Request {
	return m.those(ctx, func(vmi *v1.VirtualMachineInstance) bool { return m.toMove(ctx, vmi) })
}

func (m *Mover) those(ctx context.Context, wanted func(*v1.VirtualMachineInstance) bool) []reconcile.Request {
	var vmis v1.VirtualMachineInstanceList
	if err := m.Client.List(ctx, &vmis, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "list VirtualMachineInstances")
		return nil
	}
	var out []reconcile.Request
	for i := range vmis.Items {
		if wanted(&vmis.Items[i]) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&vmis.Items[i])})
		}
	}
	return out
}

// getsTaints lets nodes pass whose taints are new.
func getsTaints() predicate.Predicate {
	taints := func(o client.Object) []corev1.Taint { return o.(*corev1.Node).Spec.Taints }
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return len(taints(e.Object)) > 0 },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return len(taints(e.ObjectNew)) > 0 && !equality.Semantic.DeepEqual(taints(e.ObjectOld), taints(e.ObjectNew))
		},
		DeleteFunc: func(event.DeleteEvent) bool { return false },
	}
}

// complain says that a guest stays on a node that it is to leave. A guest that is to move only if possible may stay.
func (m *Mover) complain(vmi *v1.VirtualMachineInstance) {
	if _, why := vmi.NotMigratable(); why != "" {
		m.complainOf(vmi, why)
	}
}

func (m *Mover) complainOf(vmi *v1.VirtualMachineInstance, why string) {
	if *vmi.Spec.EvictionStrategy == v1.EvictionStrategyLiveMigrate {
		m.Events.Eventf(vmi, nil, corev1.EventTypeWarning, v1.ReasonFailedCreate, "Migrate", "The guest is to leave node %s, which has the taint of nodeDrainTaintKey, and cannot: %s", vmi.Status.NodeName, control.Short(why))
	}
}

// alone says whether no other node takes a guest that is to leave its node, which has the taint, and says so in an event. A migration without a
// target would have a place for minutes, of the highest priority, again and again.
func (m *Mover) alone(ctx context.Context, vmi *v1.VirtualMachineInstance) (bool, error) {
	spec, err := m.KubeVirt(ctx)
	if err != nil {
		return false, err
	}
	to, err := m.goesTo(ctx, vmi, &spec.Configuration)
	if err != nil || to.other {
		return false, err
	}
	m.complainOf(vmi, "no other node that takes guests has the labels that the guest asks for, and no taint that the guest does not tolerate")
	return true, nil
}
