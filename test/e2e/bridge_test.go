package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// bridged gives the guest the pod's address.
func bridged(s *v1.VirtualMachineInstanceSpec) {
	nic := &s.Domain.Devices.Interfaces[0]
	nic.Masquerade, nic.Bridge = nil, &v1.InterfaceBridge{}
}

// TestBridgedGuestStaysOnThePodNetwork: the guest is on the pod network as the pod would be, and stays
// there when it is rebooted, and when its lease runs out. TestVMsDoNotNoticeAKilledHandler
// has a guest renew it without virt-handler.
func TestBridgedGuestStaysOnThePodNetwork(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	apply(t, ns, clientManifest)
	v := create(t, ns, tiny("open", bootsKernel, bridged))
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/client", "--timeout=600s")
	address := v.await(v1.Running).Status.Interfaces[0].IP
	lease := regexp.QuoteMeta("tiny: eth0 " + address + "/32 via ")
	v.log().shows(lease)
	if nic, pod := v.get().Status.Interfaces[0], v.pod().Status.PodIP; nic.IP != address || nic.IP != pod || nic.MAC == "" {
		t.Errorf("status of the interface: %+v, the pod has %s", nic, pod)
	}
	toPod, toService := get[corev1.Pod](t, "-n", ns, "pod", "client").Status.PodIP+" 8080", serviceIP(t, ns, "client")+" 80"
	reached := func(when string) {
		t.Helper()
		for from, attempt := range map[string]func() error{
			"a pod":     func() error { return echoes(ns, address, 9999) },
			"a Service": func() error { return echoes(ns, serviceIP(t, ns, "guest"), 80) },
			// From the node's own network, as the kubelet's probes.
			"the node": func() error { return nodeEchoes(address, 7) },
		} {
			if err := poll(attempt); err != nil {
				t.Errorf("%s, from %s: %v", when, from, err)
			}
		}
		shell := v.shell()
		for _, to := range []string{toPod, toService} {
			if out, status := shell.run("echo to-and-fro | nc -w 5 " + to); status != 0 || strings.TrimSpace(out) != "to-and-fro" {
				t.Errorf("%s, from the guest to %s: %q (%d)", when, to, out, status)
			}
		}
		if out, _ := shell.run("cat /sys/class/net/eth0/address"); strings.TrimSpace(out) != v.get().Status.Interfaces[0].MAC {
			t.Errorf("%s, the guest's MAC is %q, the status says %s", when, out, v.get().Status.Interfaces[0].MAC)
		}
	}
	reached("at first")

	// times waits until the guest has had its lease so often.
	times := func(n int) {
		t.Helper()
		v.log().shows("(?s)" + strings.Repeat(lease+".*", n))
	}
	v.shell().send("reboot -f\n")
	times(2)
	reached("after a reboot")

	if _, status := v.shell().run("killall -USR1 udhcpc"); status != 0 { // renew
		t.Error("the guest has no DHCP client")
	}
	times(3)

	if err := addressTaken(address); err != nil {
		t.Errorf("before the VMI is deleted: %v", err) // else its being free later would prove nothing
	}
	v.delete()
	err := poll(func() error {
		if addressTaken(address) == nil {
			return fmt.Errorf("the CNI plugin still keeps %s", address)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// nodeEchoes talks to an echo server from the node's network namespace.
func nodeEchoes(address string, port int) error {
	out, err := onNode(`echo to-and-fro | busybox nc -w 3 "$1" "$2"`, address, fmt.Sprint(port))
	if err == nil && out != "to-and-fro\n" {
		err = fmt.Errorf("echo of %s:%d is %q", address, port, out)
	}
	return err
}

// addressTaken fails unless the node's IPAM plugin has given the address to a pod.
func addressTaken(address string) error {
	_, err := onNode(`test -e "/var/lib/cni/networks/pods/$1"`, address)
	return err
}
