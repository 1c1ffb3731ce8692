package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// card adds a network card of the node.
func card(definition string) func(*v1.VirtualMachineInstanceSpec) {
	return func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Devices.Interfaces = append(s.Domain.Devices.Interfaces, v1.Interface{Name: "card", SRIOV: &v1.InterfaceSRIOV{}})
		s.Networks = append(s.Networks, v1.Network{Name: "card", Multus: &v1.MultusNetwork{NetworkName: definition}})
	}
}

// TestSRIOVResource: the pod asks for the resource that a NetworkAttachmentDefinition names, and for none that is not a network's
// to name. No node of the cluster has such a card: a guest whose pod gets the resource all the same is told that the card is missing.
func TestSRIOVResource(t *testing.T) {
	const resource, escaped = "e2e.example/card", "e2e.example~1card"
	ns, other := namespace(t), namespace(t)
	installMultus(t)
	t.Cleanup(func() { onNode("ip link del br-cards") })
	cards := network("cards", `{"cniVersion": "1.0.0", "name": "cards", "type": "bridge", "bridge": "br-cards", "ipam": {}}`)
	names := func(ns, resource string) {
		t.Helper()
		kubectl(t, "-n", ns, "annotate", "--overwrite", "network-attachment-definition", "cards", "k8s.v1.cni.cncf.io/resourceName="+resource)
	}
	v := create(t, ns, tiny("card", card("cards")))
	v.awaitCondition(v1.ConditionSynchronized, v1.ReasonFailedCreate, ns+"/cards of network \"card\" does not exist")
	apply(t, ns, cards)
	v.awaitCondition(v1.ConditionSynchronized, v1.ReasonFailedCreate, "is missing: it names the resource of the SR-IOV device plugin")
	for _, wrong := range [][2]string{{"devices.kubevirt.io/vm", "resources of devices.kubevirt.io are not a network's"}, {"memory", `is "memory", and no name`}} {
		names(ns, wrong[0])
		v.awaitCondition(v1.ConditionSynchronized, v1.ReasonFailedCreate, wrong[1])
	}
	// Another namespace's annotation is not repeated.
	apply(t, other, cards)
	names(other, "another's word")
	foreign := create(t, ns, tiny("foreign", card(other+"/cards")))
	foreign.awaitCondition(v1.ConditionSynchronized, v1.ReasonFailedCreate, "names a resource of a device plugin")
	if c := foreign.get().Status.Condition(v1.ConditionSynchronized); c != nil && strings.Contains(c.Message, "word") {
		t.Errorf("the VMI says %+v", c)
	}
	foreign.delete()

	names(ns, resource)
	var pod *corev1.Pod
	if err := poll(func() error {
		pods := get[corev1.PodList](t, "-n", ns, "pods", "-l", "kubevirt.io=virt-launcher")
		if len(pods.Items) != 1 {
			return fmt.Errorf("there are %d launcher pods: %+v", len(pods.Items), v.get().Status.Conditions)
		}
		pod = &pods.Items[0]
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	c := pod.Spec.Containers[0]
	if n := c.Resources.Limits[resource]; n.Value() != 1 {
		t.Errorf("the pod's limits are %v", c.Resources.Limits)
	}
	if n := c.Resources.Limits["devices.kubevirt.io/vm"]; n.Value() != 1 {
		t.Errorf("the pod's limits are %v", c.Resources.Limits)
	}
	v.awaitCondition("PodScheduled", "Unschedulable", "Insufficient "+resource)

	// A node that says that it has such cards, and no device plugin.
	node := func(operation string) {
		t.Helper()
		kubectl(t, "patch", "node", firstName, "--subresource=status", "--type=json", "--patch",
			`[{"op":"`+operation+`","path":"/status/capacity/`+escaped+`","value":"1"},{"op":"`+operation+`","path":"/status/allocatable/`+escaped+`","value":"1"}]`)
	}
	node("add")
	t.Cleanup(func() { node("remove") })
	failed := v.await(v1.Failed)
	if ready := failed.Status.Condition(v1.ConditionReady); ready == nil || !strings.Contains(ready.Message, "spec.domain.devices.interfaces[1].sriov: Forbidden: the pod has no network card of the node for it") {
		t.Errorf("without a card: %+v", failed.Status.Conditions)
	}
	v.delete()
}
