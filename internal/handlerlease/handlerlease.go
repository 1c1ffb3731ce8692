// Package handlerlease has the names by which a node's virt-handler publishes what it knows of the node: a Lease for
// each node, in the namespace of the components. virt-handler writes the Lease. virt-controller reads it, and
// "qemuargs host" does.
package handlerlease

import "strings"

const prefix = "virt-handler-"

const (
	// HostKey is an annotation: what a guest of any pod finds on the node, a resolve.Host as JSON. It is for "qemuargs
	// host". virt-controller does not read it.
	HostKey = "kubeqemu.io/host"
	// MaxHost bounds the annotation HostKey, in bytes: 300 flags of a CPU have 5,000.
	MaxHost = 32 << 10
)

// Name returns the name of the Lease of a node's virt-handler.
func Name(node string) string { return prefix + node }

// Node returns the node of a Lease, by the Lease's name. An admission policy lets each virt-handler write only the
// Lease of its own node.
func Node(lease string) (string, bool) { return strings.CutPrefix(lease, prefix) }
