package qemuargs

import "regexp"

// DeviceFacts are the network cards of the node that a pod has of one resource.
type DeviceFacts struct {
	// Resource is the name that Kubernetes counts the cards by.
	Resource string `json:"resource,omitempty"`
	// Addresses are the cards' PCI addresses on the node.
	Addresses []string `json:"addresses,omitempty"`
}

// pciAddress is an address as Linux writes it: domain, bus, slot and function.
var pciAddress = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)

// IsPCIAddress says whether a text is the PCI address of a device of the node.
func IsPCIAddress(text string) bool { return pciAddress.MatchString(text) }
