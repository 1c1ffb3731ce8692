package launcher

import (
	"slices"
	"strings"

	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// maxDevices bounds the cards of one resource. A guest has 31 cards at most.
const maxDevices = 32

// deviceFacts returns the network cards of the node that the pod has for an interface. environment says which
// resource the network names (virt-controller), and which cards the pod got of the resource (the device plugin).
// Device plugins for SR-IOV agree on the name PCIDEVICE_ and the resource, and write its other characters in their
// own ways.
func deviceFacts(environment []string, nic string) qemuargs.DeviceFacts {
	var facts qemuargs.DeviceFacts
	for _, variable := range environment {
		if name, value, _ := strings.Cut(variable, "="); name == layout.ResourceVariable(nic) {
			facts.Resource = value
		}
	}
	if facts.Resource == "" {
		return facts
	}
	for _, variable := range environment {
		name, value, _ := strings.Cut(variable, "=")
		if plainName(name) != plainName("PCIDEVICE_"+facts.Resource) {
			continue
		}
		for address := range strings.SplitSeq(value, ",") {
			address = strings.ToLower(strings.TrimSpace(address))
			if qemuargs.IsPCIAddress(address) && !slices.Contains(facts.Addresses, address) &&
				len(facts.Addresses) < maxDevices {
				facts.Addresses = append(facts.Addresses, address)
			}
		}
	}
	return facts
}

// plainName returns a text in capitals, with an underscore for all but letters and digits.
func plainName(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToUpper(text))
}
