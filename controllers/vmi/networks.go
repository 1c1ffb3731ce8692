package vmi

import (
	"encoding/json"
	"net"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// Annotations of a pod by which Multus, and network plugins of its kind, are told what to connect
// the pod to, and tell what they did (the Kubernetes Network Plumbing Working Group's
// specification).
const (
	networksAnnotation       = "k8s.v1.cni.cncf.io/networks"
	networkStatusAnnotation  = "k8s.v1.cni.cncf.io/network-status"
	defaultNetworkAnnotation = "v1.multus-cni.io/default-network"
)

// attachment is an element of the annotation of networks.
type attachment struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	MAC       string `json:"mac,omitempty"`
	Interface string `json:"interface"`
}

// addNetworks writes into annotations the VMI's networks, by which Multus is told of them. The pod's interface
// gets the guest's MAC: a plugin may let only the interface's MAC pass (macspoofchk of the plugin bridge), or
// deliver frames for it only (macvlan).
func addNetworks(annotations map[string]string, vmi *v1.VirtualMachineInstance) {
	var beside []attachment
	for i := range vmi.Spec.Networks {
		n := &vmi.Spec.Networks[i]
		if n.Multus == nil {
			continue
		}
		namespace, name := n.Multus.Definition(vmi.Namespace)
		if n.Multus.Default {
			annotations[defaultNetworkAnnotation] = namespace + "/" + name
			continue
		}
		beside = append(beside, attachment{Name: name, Namespace: namespace, MAC: macOn(vmi, n), Interface: n.Link()})
	}
	if len(beside) == 0 {
		return
	}
	text, err := json.Marshal(beside)
	if err != nil { // texts only
		return
	}
	annotations[networksAnnotation] = string(text)
}

// macOn returns the MAC of the guest's interface on a network beside the pod's, as package resolve has it.
func macOn(vmi *v1.VirtualMachineInstance, n *v1.Network) string {
	for _, nic := range vmi.Spec.Domain.Devices.Interfaces {
		if nic.Name == n.Name {
			if mac, err := net.ParseMAC(nic.MacAddress); err == nil {
				return mac.String()
			}
		}
	}
	return v1.MAC(vmi.UID, n.Name)
}
