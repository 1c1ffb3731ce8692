package vmi

import (
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// macIndex indexes VMIs that have not ended by the networks of Multus on which they are, each with the guest's MAC there.
const macIndex = "mac"

// card is a guest's network card on a network of Multus.
type card struct{ nic, network, mac string }

func (c card) key() string { return c.network + " " + c.mac }

// cards are a VMI's on networks of Multus. Only on these do guests meet by their MACs.
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

// sharing are the names of the other VMIs of the namespace with a card's MAC on the card's network. VMIs of other namespaces are
// none of a tenant's business.
func (r *Reconciler) sharing(ctx context.Context, vmi *v1.VirtualMachineInstance, c card) ([]string, error) {
	var all v1.VirtualMachineInstanceList
	if err := r.Client.List(ctx, &all, client.InNamespace(vmi.Namespace), client.MatchingFields{macIndex: c.key()}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("find the VMIs with the MAC %s: %w", c.mac, err)
	}
	var names []string
	for i := range all.Items {
		if other := &all.Items[i]; other.UID != vmi.UID {
			names = append(names, other.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// observeSharedMAC says in a VMI's status which of its MACs another VMI has too. A network delivers frames for that MAC to one of the two,
// or to one after the other. Nothing is refused: a guest that is to take over for another may want that.
func (r *Reconciler) observeSharedMAC(ctx context.Context, vmi *v1.VirtualMachineInstance) error {
	var said []string
	for _, c := range cards(vmi) {
		names, err := r.sharing(ctx, vmi, c)
		if err != nil {
			return err
		}
		if len(names) == 0 {
			continue
		}
		text := fmt.Sprintf("network %q (%s): VMI %q", c.nic, c.network, names[0])
		if more := len(names) - 1; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		said = append(said, text+" has the MAC "+c.mac+" too")
	}
	if len(said) == 0 {
		vmi.Status.RemoveCondition(v1.ConditionSharedMAC)
		return nil
	}
	if more := len(said) - maxNamed; more > 0 {
		said = append(said[:maxNamed], fmt.Sprintf("%d networks more", more))
	}
	vmi.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionSharedMAC, Status: metav1.ConditionTrue, Reason: v1.ReasonMACInUse,
		Message: strings.Join(said, "; ") + ": the guests may lose each other's packets. Give one of them another macAddress"}, r.now())
	return nil
}

// sharersOfMAC are the VMIs that share a MAC with one that has come, or gone.
func (r *Reconciler) sharersOfMAC(ctx context.Context, object client.Object) (requests []ctrl.Request) {
	vmi, ok := object.(*v1.VirtualMachineInstance)
	if !ok {
		return nil
	}
	for _, c := range cards(vmi) {
		names, err := r.sharing(ctx, vmi, c)
		if err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "find the VMIs that share a MAC", "vmi", client.ObjectKeyFromObject(vmi))
			return requests
		}
		for _, name := range names {
			requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKey{Namespace: vmi.Namespace, Name: name}})
		}
	}
	return requests
}
