package node

import (
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Bounds of what a guest's agent may put into a VMI's status. Those of texts are in bytes.
const (
	maxOSText         = 128
	maxInterfaceName  = 64
	maxGuestAddresses = 8
	maxInterfaces     = 10 // KubeVirt's bound; a VMI that itself has more interfaces keeps them all
)

// reportAgent brings a VMI's status up to date with what the guest's agent says. It runs after
// report. It is pure. When the agent disconnects, the status keeps what the agent last said of
// the operating system, as KubeVirt does.
func reportAgent(object *v1.VirtualMachineInstance, agent control.AgentReport, now metav1.Time) {
	status := &object.Status
	status.FSFreezeStatus = ""
	if agent.Frozen {
		status.FSFreezeStatus = v1.FSFrozen
	}
	reportCredentials(object, agent.Credentials, now)
	if !agent.Connected || status.Phase != v1.Running {
		status.RemoveCondition(v1.ConditionAgentConnected)
		return
	}
	connected := v1.VirtualMachineInstanceCondition{Type: v1.ConditionAgentConnected, Status: metav1.ConditionTrue}
	status.SetCondition(connected, now)
	if agent.OS != (control.GuestOS{}) {
		status.GuestOSInfo = guestOS(agent.OS)
	}
	status.Interfaces = withGuest(object, status.Interfaces, agent.Interfaces)
}

// withAgent reports whether a launcher's guest has the port of an agent.
func withAgent(state control.StateReport) bool {
	return state.Machine != nil && state.Machine.Agent != nil
}

// keepAgentReport keeps the status's facts from the guest's agent. It runs after report, while
// the launcher has not yet sent a report of the agent on this connection: the launcher sends
// that right after its hello, whatever it told an earlier virt-handler or connection. A guest that
// has moved has another pod, whose addresses are in the report. Of a link that is gone, or that could not
// be read since the guest moved, the report does not name the pod's link: nothing that was said of the
// link before is kept, and once the link is read again, the report says all.
func keepAgentReport(object, before *v1.VirtualMachineInstance) {
	known := before.Status.Interfaces
	if object.Status.Phase != v1.Running || len(known) == 0 {
		return
	}
	now := object.Status.Interfaces
	out := slices.Clone(known)
	for i := range out {
		at := slices.IndexFunc(now, func(s v1.NetworkInterfaceStatus) bool { return s.Name != "" && s.Name == out[i].Name })
		if at >= 0 && (now[at].PodInterfaceName == "") != (out[i].PodInterfaceName == "") {
			out[i] = now[at]
		}
		if at >= 0 && now[at].IP != "" && now[at].IP != out[i].IP {
			out[i].IP, out[i].IPs = now[at].IP, now[at].IPs
		}
		if at >= 0 && now[at].IPAM != nil {
			out[i].IPAM = now[at].IPAM
		}
		if at >= 0 {
			out[i].LinkState = now[at].LinkState
		}
	}
	object.Status.Interfaces = out
}

func guestOS(os control.GuestOS) v1.VirtualMachineInstanceGuestOSInfo {
	text := func(s string) string { return control.Printable(s, maxOSText) }
	return v1.VirtualMachineInstanceGuestOSInfo{Name: text(os.Name), KernelRelease: text(os.KernelRelease),
		Version: text(os.Version), PrettyName: text(os.PrettyName), VersionID: text(os.VersionID),
		KernelVersion: text(os.KernelVersion), Machine: text(os.Machine), ID: text(os.ID)}
}

// KubeVirt's names of the sources of facts about an interface.
const (
	fromDomain = "domain"
	fromAgent  = "guest-agent"
	fromMultus = "multus-status"
)

// sources names who knows an interface of the VMI's spec. The pod's link of a network of Multus is
// virt-handler's to see, so Multus is not asked.
func sources(agent, multus bool) string {
	out := fromDomain
	if agent {
		out += ", " + fromAgent
	}
	if multus {
		out += ", " + fromMultus
	}
	return out
}

// withGuest adds what the guest says of its interfaces to the known facts. A guest is believed
// only about itself. The address to which virt-api forwards ports stays the pod's: a guest, or
// an intruder in it, must not lead virt-api to other hosts.
func withGuest(object *v1.VirtualMachineInstance, known []v1.NetworkInterfaceStatus,
	said []control.GuestInterface) []v1.NetworkInterfaceStatus {
	out := slices.Clone(known)
	bridged := map[string]bool{}
	for _, nic := range object.Spec.Domain.Devices.Interfaces {
		bridged[nic.Name] = nic.IsBridged() || nic.SRIOV != nil
	}
	told := map[string]bool{}
	for _, i := range said {
		name := control.Printable(i.Name, maxInterfaceName)
		at := slices.IndexFunc(out, func(s v1.NetworkInterfaceStatus) bool {
			return s.Name != "" && s.MAC == i.MAC && !told[s.Name]
		})
		switch {
		case at >= 0:
			own := &out[at]
			told[own.Name] = true
			own.InterfaceName, own.InfoSource = name, sources(true, !object.Spec.OnPods(own.Name))
			if bridged[own.Name] {
				own.IPs = merged(own.IPs, i.Addresses)
			}
			// virt-api forwards no ports to the address of a network beside the pod's.
			if own.IP == "" && len(own.IPs) > 0 && !object.Spec.OnPods(own.Name) {
				own.IP = own.IPs[0]
			}
		case len(out) < maxInterfaces:
			guest := v1.NetworkInterfaceStatus{InterfaceName: name, MAC: control.Printable(i.MAC, maxInterfaceName),
				InfoSource: fromAgent, IPs: merged(nil, i.Addresses)}
			if len(guest.IPs) > 0 {
				guest.IP = guest.IPs[0]
			}
			out = append(out, guest)
		}
	}
	return out
}

// merged returns the known addresses, and those of the guest's texts that are global unicast
// addresses, until there are maxGuestAddresses.
func merged(known, said []string) []string {
	out := slices.Clone(known)
	for _, a := range said[:min(len(said), maxGuestAddresses)] {
		if len(out) >= maxGuestAddresses {
			break
		}
		ip, err := netip.ParseAddr(a)
		if err == nil && ip.IsGlobalUnicast() && ip.Zone() == "" && !slices.Contains(out, ip.String()) {
			out = append(out, ip.String())
		}
	}
	return out
}
