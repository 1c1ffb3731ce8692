package v1

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// PodLink is the name of the pod's own interface in the pod, by the CRI's convention.
const PodLink = "eth0"

// IsPods reports whether a network is the pod's own: the cluster's, or the network of Multus that
// takes its place.
func (n *Network) IsPods() bool { return n.Pod != nil || n.Multus != nil && n.Multus.Default }

// Link returns the name, in the pod, of the interface that is on the network. For a network beside
// the pod's own it is "pod" and the first 11 hexadecimal digits of the SHA-256 sum of the
// network's name, as in KubeVirt.
func (n *Network) Link() string {
	if n.IsPods() {
		return PodLink
	}
	sum := sha256.Sum256([]byte(n.Name))
	return "pod" + hex.EncodeToString(sum[:])[:11]
}

// Definition returns the namespace and the name of the network's NetworkAttachmentDefinition, for a
// VMI of a namespace.
func (m *MultusNetwork) Definition(own string) (namespace, name string) {
	if namespace, name, both := strings.Cut(m.NetworkName, "/"); both {
		return namespace, name
	}
	return own, m.NetworkName
}

// Network returns the network that an interface connects to, or nil.
func (s *VirtualMachineInstanceSpec) Network(nic string) *Network {
	i := slices.IndexFunc(s.Networks, func(n Network) bool { return n.Name == nic })
	if i < 0 {
		return nil
	}
	return &s.Networks[i]
}

// OnPods reports whether an interface connects to the pod's own network. It does if nothing else is
// said.
func (s *VirtualMachineInstanceSpec) OnPods(nic string) bool {
	n := s.Network(nic)
	return n == nil || n.Multus == nil || n.Multus.Default
}
