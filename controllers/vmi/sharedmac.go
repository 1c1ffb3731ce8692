package vmi

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// macIndex indexes VMIs that have not ended by the networks of Multus on which they are, each with the guest's
// MAC there.
const macIndex = "mac"

// card is a guest's network card on a network of Multus.
type card struct{ nic, network, mac string }

func (c card) key() string { return c.network + " " + c.mac }

// cards returns a VMI's cards on networks of Multus. Only on these do guests meet by their MACs.
func cards(vmi *v1.VirtualMachineInstance) (out []card) {
	for i := range vmi.Spec.Networks {
		if n := &vmi.Spec.Networks[i]; n.Multus != nil && !n.Multus.Default {
			namespace, name := n.Multus.Definition(vmi.Namespace)
			out = append(out, card{nic: n.Name, network: namespace + "/" + name, mac: macOn(vmi, n)})
		}
	}
	return out
}

func indexByMAC(o client.Object) (keys []string) {
	vmi, ok := o.(*v1.VirtualMachineInstance)
	if !ok || vmi.IsFinal() {
		return nil
	}
	for _, c := range cards(vmi) {
		keys = append(keys, c.key())
	}
	return keys
}

// maxSharers is how many VMIs with one MAC are told of each other, and looked at again when one comes or goes.
// Where more share a MAC, what each says stays the same, however many come and go.
const maxSharers = 8

// sharing returns the other VMIs of the namespace with a card's MAC on the card's network, maxSharers and 1 at
// most. The cache returns them in any order. VMIs of other namespaces are none of a tenant's business.
func (r *Reconciler) sharing(ctx context.Context, vmi *v1.VirtualMachineInstance,
	c card) (others []*v1.VirtualMachineInstance, err error) {
	var all v1.VirtualMachineInstanceList
	if err := r.Client.List(ctx, &all, client.InNamespace(vmi.Namespace), client.MatchingFields{macIndex: c.key()},
		client.Limit(maxSharers+2), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("find the VMIs with the MAC %s: %w", c.mac, err)
	}
	for i := range all.Items {
		if other := &all.Items[i]; other.UID != vmi.UID && len(others) <= maxSharers {
			others = append(others, other)
		}
	}
	return others, nil
}

// sharersText names the VMIs that share a MAC, or says that too many do.
func sharersText(others []*v1.VirtualMachineInstance) string {
	if len(others) > maxSharers {
		return fmt.Sprintf("more than %d other VMIs have", maxSharers)
	}
	first := slices.MinFunc(others, func(a, b *v1.VirtualMachineInstance) int { return strings.Compare(a.Name, b.Name) })
	if more := len(others) - 1; more > 0 {
		return fmt.Sprintf("VMI %q and %d more have", first.Name, more)
	}
	return fmt.Sprintf("VMI %q has", first.Name)
}

// noteSharedMAC writes into a VMI's status which of its MACs another VMI has too. A network delivers frames
// for that MAC to one of the two, or to one after the other. Nothing is refused: a guest that is to take over
// for another may want that. A VMI that has ended shares nothing.
func (r *Reconciler) noteSharedMAC(ctx context.Context, t *turn) (time.Duration, error) {
	vmi := t.vmi
	if vmi.IsFinal() {
		return 0, nil // finish took the condition back
	}
	var said []string
	for _, c := range cards(vmi) {
		others, err := r.sharing(ctx, vmi, c)
		if err != nil {
			return 0, err
		}
		if len(others) > 0 {
			said = append(said, fmt.Sprintf("network %q (%s): %s the MAC %s too", c.nic, c.network, sharersText(others), c.mac))
		}
	}
	if len(said) == 0 {
		vmi.Status.RemoveCondition(v1.ConditionSharedMAC)
		return 0, nil
	}
	if more := len(said) - maxNamed; more > 0 {
		said = append(said[:maxNamed], fmt.Sprintf("%d networks more", more))
	}
	vmi.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionSharedMAC, Status: metav1.ConditionTrue,
		Reason: v1.ReasonMACInUse,
		Message: "the guests may lose each other's packets until one of them has another macAddress: " +
			strings.Join(said, "; ")}, r.now())
	return 0, nil
}

// comesOrEnds passes what changes who shares a MAC: a VMI that comes, goes or ends. A VMI's networks never change.
func comesOrEnds() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, wasVMI := e.ObjectOld.(*v1.VirtualMachineInstance)
			now, isVMI := e.ObjectNew.(*v1.VirtualMachineInstance)
			return wasVMI && isVMI && !before.IsFinal() && now.IsFinal()
		},
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// sharersOfMAC returns the VMIs that share a MAC with one that has come, gone or ended. Where more than
// maxSharers are left, none of them says anything else than before. A VMI without a pod says later what it
// shares: to look at it now would be an attempt to start it.
func (r *Reconciler) sharersOfMAC(ctx context.Context, object client.Object) (requests []ctrl.Request) {
	vmi, ok := object.(*v1.VirtualMachineInstance)
	if !ok {
		return nil
	}
	for _, c := range cards(vmi) {
		others, err := r.sharing(ctx, vmi, c)
		if err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "find the VMIs that share a MAC", "vmi", client.ObjectKeyFromObject(vmi))
			return requests
		}
		for _, other := range others {
			if reported(&other.Status) {
				requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(other)})
			}
		}
	}
	return requests
}
