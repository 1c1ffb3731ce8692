package node

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const (
	// minIPv6MTU is the least of a link with IPv6 (RFC 8200, 5).
	minIPv6MTU = 1280
	// jumboMTU is the most that cards and switches of Ethernet commonly carry.
	jumboMTU = 9216
)

// observeMTU writes into the status which networks have an MTU that is too small for IPv6, or too large for the
// guest's packets to arrive. While the link of a network cannot be read, what was said before stays.
func observeMTU(object *v1.VirtualMachineInstance, network map[string]networkFacts, now metav1.Time) {
	reason, said, unread := "", []string(nil), false
	for _, nic := range object.Spec.Domain.Devices.Interfaces {
		if nic.SRIOV != nil { // the pod has no link of it
			continue
		}
		mtu := network[nic.Name].nic.MTU
		switch {
		case mtu == 0:
			unread = true
		case mtu < minIPv6MTU:
			reason = v1.ReasonMTUTooSmall
			said = append(said, fmt.Sprintf("network %q has the MTU %d: the guest has no IPv6 there, which needs %d",
				nic.Name, mtu, minIPv6MTU))
		case mtu > jumboMTU:
			reason = v1.ReasonMTUTooLarge
			said = append(said, fmt.Sprintf("network %q has the MTU %d: switches and cards of Ethernet carry %d at most, "+
				"and drop larger packets of the guest's without a word", nic.Name, mtu, jumboMTU))
		}
	}
	if unread && object.Status.Condition(v1.ConditionUnusualMTU) != nil {
		return
	}
	if reason == "" {
		object.Status.RemoveCondition(v1.ConditionUnusualMTU)
		return
	}
	more := ""
	if len(said) > maxMTUs {
		more = fmt.Sprintf("; %d networks more", len(said)-maxMTUs)
		said = slices.Clip(said[:maxMTUs])
	}
	object.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionUnusualMTU,
		Status: metav1.ConditionTrue, Reason: reason, Message: strings.Join(said, "; ") + more +
			". Set another mtu in the network's configuration, and start the guest anew"}, now)
}

// maxMTUs bounds the message.
const maxMTUs = 4
