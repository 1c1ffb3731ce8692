package handover

import (
	"errors"
	"fmt"
	"slices"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// ErrDeviceUnknown means that it is not known yet which of its network cards a pod got for which interface.
var ErrDeviceUnknown = errors.New("it is not known which network card is for which interface")

// maxDevices is how many cards of one resource are looked at.
const maxDevices = 32

// Devices says which network card of the node each interface with sriov gets, by interface. A launcher says which cards
// its pod has of each resource. told is what Multus said of the pod. Both may be a tenant's words: QEMU can open none but the
// cards that the device plugin gave its pod. An interface is left out for which the pod has no card.
func Devices(asked control.InspectRequest, reply control.InspectReply, told map[string]v1.PCIAddress) (map[string]string, error) {
	if len(reply.Devices) != len(asked.Devices) {
		return nil, fmt.Errorf("inspect network cards: %w: asked about %d, got %d", control.ErrProtocol, len(asked.Devices), len(reply.Devices))
	}
	out, taken, shares := map[string]string{}, map[string]string{}, map[string]int{}
	for _, facts := range reply.Devices {
		if len(facts.Addresses) > maxDevices || slices.ContainsFunc(facts.Addresses, func(a string) bool { return !qemuargs.IsPCIAddress(a) }) {
			return nil, fmt.Errorf("inspect network cards: %w: %d addresses", control.ErrProtocol, len(facts.Addresses))
		}
		shares[facts.Resource]++
	}
	for i, nic := range asked.Devices {
		facts := reply.Devices[i]
		if len(facts.Addresses) == 0 {
			continue
		}
		address, err := deviceOf(nic, facts, shares[facts.Resource], told)
		if err != nil {
			return nil, err
		}
		if other, ok := taken[address]; ok {
			return nil, fmt.Errorf("%w: %s is for the interfaces %q and %q", ErrDeviceUnknown, address, other, nic)
		}
		out[nic], taken[address] = address, nic
	}
	return out, nil
}

// deviceOf is the card of an interface. shares is how many interfaces have cards of the same resource.
func deviceOf(nic string, facts qemuargs.DeviceFacts, shares int, told map[string]v1.PCIAddress) (string, error) {
	said, known := told[nic]
	switch {
	case slices.Contains(facts.Addresses, string(said)):
		return string(said), nil
	case known:
		return "", fmt.Errorf("%w: Multus says that interface %q has %s, which is none of the pod's %v of %.317q", ErrDeviceUnknown, nic, said, facts.Addresses, facts.Resource)
	case shares == 1 && len(facts.Addresses) == 1:
		return facts.Addresses[0], nil
	}
	return "", fmt.Errorf("%w: %d interfaces have cards of %.317q, and the pod's annotation k8s.v1.cni.cncf.io/network-status has no device-info for interface %q", ErrDeviceUnknown, shares, facts.Resource, nic)
}
