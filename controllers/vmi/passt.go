package vmi

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// An interface with the binding passt has a container with the program passt, which makes the guest's
// connections anew with sockets of the pod. passt locks itself into a user namespace, which the seccomp profile
// RuntimeDefault denies. So this one container has a profile of its own, and the containers with QEMU and the
// guest's disks keep theirs.

const (
	// passtMemory is booked for passt: its program and buffers, and the kernel's buffers of its connections.
	passtMemory = 48 * mib
	// passtAllPorts is booked besides for the sockets that listen where all ports lead to the guest.
	passtAllPorts = 320 * mib
	// passtRoom is how much more passt may take: what the kernel buffers for many connections.
	passtRoom = 256 * mib
	// passtSocketSize limits the folder in memory with passt's socket.
	passtSocketSize = 1 * mib
	// passtFiles is how many files passt may have open: each listening port and each connection is one.
	passtFiles = 1 << 17
	// passtListens is how many files the ports take where all lead to the guest: two for each that is not one of
	// the kernel's own choice.
	passtListens = 80000
	// otherMTU is the MTU of cards that are not virtio ones. virtio takes passt's own, which is the largest of IP.
	otherMTU = 1500
)

// hasPasst reports whether an interface of the VMI's has the binding passt.
func hasPasst(vmi *v1.VirtualMachineInstance) bool {
	return slices.ContainsFunc(vmi.Spec.Domain.Devices.Interfaces,
		func(nic v1.Interface) bool { return nic.PasstBinding != nil })
}

// interfaceOf returns the name of the interface that a container of this name connects, or the container's name if the
// VMI's spec has no such interface.
func interfaceOf(vmi *v1.VirtualMachineInstance, container string) string {
	for _, nic := range vmi.Spec.Domain.Devices.Interfaces {
		if layout.PasstContainer(nic.Name) == container {
			return nic.Name
		}
	}
	return container
}

// addPasst adds the container that connects the guest, and connects the container with the launcher's. The
// kubelet starts it before the launcher's and ends it after that. passt has no privilege: the pod's network
// namespace lets everybody listen on every port, and send ICMP echo.
func addPasst(pod *corev1.Pod, vmi *v1.VirtualMachineInstance, config PodConfig) {
	for _, nic := range vmi.Spec.Domain.Devices.Interfaces {
		if nic.PasstBinding == nil {
			continue
		}
		name := layout.PasstContainer(nic.Name)
		addSidecar(pod, socketSidecar{name: name, command: passt(vmi, nic, config.GuestAddress),
			resources: passtResources(vmi, nic),
			volume:    name, size: passtSocketSize, at: layout.PasstFolder(nic.Name), own: layout.PasstSocketDir,
			seccomp: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost,
				LocalhostProfile: ptr.To(v1.PasstProfile)}})
	}
	if hasPasst(vmi) {
		pod.Spec.SecurityContext.Sysctls = append(pod.Spec.SecurityContext.Sysctls,
			corev1.Sysctl{Name: "net.ipv4.ip_unprivileged_port_start", Value: "0"},
			corev1.Sysctl{Name: "net.ipv4.ping_group_range", Value: strconv.Itoa(RuntimeUser) + " " + strconv.Itoa(RuntimeUser)})
	}
}

// addressOption tells serve-network the guest's IPv4 address, where it is not the pod's.
const addressOption = "--guest-address="

// guestAddress returns the IPv4 address of the guest behind passt in a pod, or "" if the pod has none. It is
// the address of the pod in which the guest has started. A guest that has moved does not ask DHCP anew. Until
// the guest sends something, passt would send to the new pod's address, which the guest does not have.
func guestAddress(pod *corev1.Pod) string {
	var candidates []string
	for _, c := range pod.Spec.InitContainers {
		for _, option := range c.Command {
			if address, ok := strings.CutPrefix(option, addressOption); ok &&
				strings.HasPrefix(c.Name, layout.PasstContainerPrefix) {
				candidates = append(candidates, address)
			}
		}
	}
	for _, ip := range pod.Status.PodIPs {
		candidates = append(candidates, ip.IP)
	}
	for _, c := range candidates {
		// passt does not start with another address. The kubelet, which writes the addresses, may be an attacker's.
		if address, err := netip.ParseAddr(c); err == nil && address.Is4() && address.IsGlobalUnicast() {
			return address.String()
		}
	}
	return ""
}

// passt returns the command of the container. The guest does not reach the pod's loopback by the gateway's
// address (--no-map-gw). The address is that of a guest that comes from another pod.
func passt(vmi *v1.VirtualMachineInstance, nic v1.Interface, address string) []string {
	tcp, udp := "all", "all"
	least := passtListens
	if len(nic.Ports) > 0 {
		tcp, udp, least = ports(nic.Ports, "TCP"), ports(nic.Ports, "UDP"), 1024
	}
	command := []string{launcherBinary, "serve-network", "--most=" + strconv.Itoa(passtFiles),
		"--least=" + strconv.Itoa(least), "--link=" + v1.PodLink}
	if address != "" {
		command = append(command, addressOption+address)
	}
	command = append(command, "--", "--no-map-gw", "--hostname="+vmi.GuestHostname(), "--tcp-ports="+tcp,
		"--udp-ports="+udp)
	if nic.Model != "virtio" {
		command = append(command, "--mtu="+strconv.Itoa(otherMTU))
	}
	return command
}

// ports returns the ports of a protocol, as passt takes them.
func ports(list []v1.Port, protocol string) string {
	var out []string
	for _, p := range list {
		if text := strconv.Itoa(int(p.Port)); (p.Protocol == protocol || p.Protocol == "" && protocol == "TCP") &&
			!slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ",")
}

// passtResources returns the resources of the container. The limit keeps the connections of a guest, and those
// of its peers, from taking the node's memory. A pod whose guest has CPUs of its own must have the same
// requests and limits, or the kubelet gives it no CPUs.
func passtResources(vmi *v1.VirtualMachineInstance, nic v1.Interface) corev1.ResourceRequirements {
	booked := passtMemory
	if len(nic.Ports) == 0 {
		booked += passtAllPorts
	}
	limit := *resource.NewQuantity(booked+passtRoom, resource.BinarySI)
	if vmi.Spec.Domain.CPU.Dedicated() {
		list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: limit}
		return corev1.ResourceRequirements{Requests: list, Limits: list.DeepCopy()}
	}
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"),
			corev1.ResourceMemory: *resource.NewQuantity(booked, resource.BinarySI)},
		Limits: corev1.ResourceList{corev1.ResourceMemory: limit},
	}
}
