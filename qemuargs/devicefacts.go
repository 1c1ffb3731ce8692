package qemuargs

import "strings"

// DeviceFacts are the network cards of the node that a pod has of one resource.
type DeviceFacts struct {
	// Resource is the name that Kubernetes counts the cards by.
	Resource string `json:"resource,omitempty"`
	// Addresses are the cards' PCI addresses on the node.
	Addresses []string `json:"addresses,omitempty"`
}

// IsPCIAddress reports whether a text is the PCI address of a device of the node, as Linux writes
// it: domain, bus, slot and function. It uses no regular expression: that package would take
// 200 KiB of memory in each virt-launcher.
func IsPCIAddress(text string) bool {
	const highest = "ffff:ff:1f.7" // each digit is the highest of its place
	if len(text) != len(highest) {
		return false
	}
	for i := range len(text) {
		switch c, most := text[i], highest[i]; {
		case most == ':' || most == '.':
			if c != most {
				return false
			}
		case c > most || !strings.Contains("0123456789abcdef", text[i:i+1]):
			return false
		}
	}
	return true
}
