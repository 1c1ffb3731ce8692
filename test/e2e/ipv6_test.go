package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestDualStack needs a cluster with both families, and TestIPv6Only one without IPv4: the guest
// has what its pod has.
func TestDualStack(t *testing.T) {
	onFamilies(t, "dual")
	ns := namespace(t)
	v := familiesReached(t, ns, 2)
	v.log().shows(`tiny: eth0 10\.0\.2\.2/24 via 10\.0\.2\.1`)
}

func TestIPv6Only(t *testing.T) {
	onFamilies(t, "ipv6")
	ns := namespace(t)
	v := familiesReached(t, ns, 1)
	// Nobody answers DHCP for IPv4.
	if out, _ := v.shell().run("ip -4 -o addr show dev eth0; ip -4 route"); strings.TrimSpace(out) != "" {
		t.Errorf("the guest has IPv4: %s", out)
	}
}

// TestIPv6OnlyDHCP has a guest with a client of DHCPv6, which takes name servers from it and from router
// advertisements.
func TestIPv6OnlyDHCP(t *testing.T) {
	onFamilies(t, "ipv6")
	ns := namespace(t)
	apply(t, ns, clientManifest)
	d := create(t, ns, tiny("debian", debian("ssh-ed25519 AAAA"), asks6))
	d.await(v1.Running)
	server := get[corev1.Service](t, "-n", "default", "service", "kubernetes").Spec.ClusterIP // as the kubelet says it
	d.log().shows(`guest has fd10:0:2::2/128 default via fe80::1 .*` + regexp.QuoteMeta(server))
	address := d.get().Status.Interfaces[0].IP
	if err := poll(func() error { return answersSSH(ns, address) }); err != nil {
		t.Error(err)
	}
}

// asks6 has the Debian guest ask for IPv6 alone, and say on its console what it got.
func asks6(s *v1.VirtualMachineInstanceSpec) {
	seed := s.Volumes[len(s.Volumes)-1].CloudInitNoCloud
	seed.NetworkData = "version: 2\nethernets:\n  enp1s0: {dhcp6: true}\n"
	seed.UserData += `runcmd:
- |
  until [ -n "$(ip -6 -o addr show dev enp1s0 scope global)" ]; do sleep 1; done
  echo guest has $(ip -6 -o addr show dev enp1s0 scope global | sed 's/.*inet6 \([^ ]*\).*/\1/') \
    $(ip -6 route show default | cut -d' ' -f1-3) $(resolvectl dns enp1s0) >/dev/ttyS0
`
}

// answersSSH wants a server's first words, as a pod hears them.
func answersSSH(ns, address string) error {
	out, err := output("", "kubectl", "-n", ns, "exec", "client", "--", "busybox", "nc", "-w", "3", address, "22")
	if err == nil && !strings.HasPrefix(out, "SSH-2.0") {
		err = fmt.Errorf("%s:22 says %q", address, out)
	}
	return err
}

// TestMigrationDualStack: a guest that has moved to another node, and to another pod with other addresses, goes
// on with its own, in both families, and so it does when it is then rebooted.
func TestMigrationDualStack(t *testing.T) {
	onFamilies(t, "dual")
	newSecondNode(t)
	ns := namespace(t)
	apply(t, ns, clientManifest)
	kubectl(t, "cordon", secondName)
	m := createVM(t, ns, "open", v1.RunStrategyAlways, cloudInit("#tiny\n"))
	m.runs("")
	kubectl(t, "uncordon", secondName)
	const lease = `tiny: eth0 fd10:0:2::2/120 via fe80::1`
	m.log().shows(lease)
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/client", "--timeout=600s")
	client := get[corev1.Pod](t, "-n", ns, "pod", "client").Status.PodIPs
	reached := func(when string) {
		t.Helper()
		shell := m.shell()
		for i := range 2 {
			err := poll(func() error {
				pod, nic := m.pod().Status.PodIPs, m.get().Status.Interfaces[0]
				if len(pod) != 2 || len(nic.IPs) != 2 || nic.IPs[i] != pod[i].IP {
					return fmt.Errorf("the pod has %v, status.interfaces[0] %q", pod, nic.IPs)
				}
				return echoes(ns, pod[i].IP, 9999)
			})
			if err != nil {
				t.Errorf("%s: %v", when, err)
			}
			if out, status := shell.run("echo to-and-fro | nc -w 5 " + client[i].IP + " 8080"); status != 0 || strings.TrimSpace(out) != "to-and-fro" {
				t.Errorf("%s, from the guest to %s: %q (%d)", when, client[i].IP, out, status)
			}
		}
	}
	reached("before")
	for i, to := range []string{secondName, firstName} {
		if s := m.migrate(fmt.Sprint("move-", i), nil).ends(v1.MigrationSucceeded); s.TargetNode != to {
			t.Fatalf("moved to %s", s.TargetNode)
		}
		reached("on " + to)
	}
	m.shell().send("reboot -f\n")
	m.log().shows(lease) // the log is this pod's, in which the guest has not booted before
	reached("after a reboot")
	kubectl(t, "-n", ns, "delete", "vm", m.name, "--timeout=600s")
}

// onFamilies fails on a cluster with other address families: the test could prove nothing.
func onFamilies(t *testing.T, families string) {
	t.Helper()
	if have := os.Getenv(ipsVariable); have != families {
		t.Fatalf("the cluster has the address families %q: set %s=%s", have, ipsVariable, families)
	}
}

// familiesReached wants a guest to be reached by a pod and by a Service, and to reach both, in each
// family of the cluster. It returns the guest.
func familiesReached(t *testing.T, ns string, families int) vmi {
	t.Helper()
	apply(t, ns, strings.ReplaceAll(clientManifest, "spec:\n  selector", "spec:\n  ipFamilyPolicy: PreferDualStack\n  selector"))
	open, listed := create(t, ns, tiny("open")), create(t, ns, tiny("listed", ports(7)))
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/client", "--timeout=600s")
	for _, v := range []vmi{open, listed} {
		v.await(v1.Running)
		v.log().shows(`tiny: eth0 fd10:0:2::2/120 via fe80::1 mtu 1[0-9]{3}`)
	}
	// The kubelet's report may come after the guest is running.
	addresses := func(v vmi) []string {
		var out []string
		err := poll(func() error {
			nic := v.get().Status.Interfaces[0]
			if out = nic.IPs; len(out) != families || nic.IP != out[0] || !slices.ContainsFunc(out, is6) {
				return fmt.Errorf("status.interfaces[0]: %+v", nic)
			}
			var pod []string
			for _, ip := range v.pod().Status.PodIPs {
				pod = append(pod, ip.IP)
			}
			if !slices.Equal(out, pod) {
				return fmt.Errorf("status.interfaces[0] has %q, the pod %q", out, pod)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	openIPs, listedIPs := addresses(open), addresses(listed)
	services := func(name string) []string { return get[corev1.Service](t, "-n", ns, "service", name).Spec.ClusterIPs }
	for i := range families {
		for _, target := range []struct {
			address string
			port    int
		}{{listedIPs[i], 7}, {openIPs[i], 9999}, {services("guest")[i], 80}} {
			if err := poll(func() error { return echoes(ns, target.address, target.port) }); err != nil {
				t.Errorf("from a pod: %v", err)
			}
		}
		if err := echoes(ns, listedIPs[i], 9999); err == nil {
			t.Errorf("a port that is not listed is reached at %s", listedIPs[i])
		}
		if err := nodeEchoes(openIPs[i], 7); err != nil {
			t.Errorf("from the node: %v", err)
		}
	}
	client := get[corev1.Pod](t, "-n", ns, "pod", "client")
	for name, v := range map[string]vmi{"open": open, "listed": listed} {
		shell := v.shell()
		for i := range families {
			for _, address := range []string{client.Status.PodIPs[i].IP + " 8080", services("client")[i] + " 80"} {
				out, status := shell.run("echo to-and-fro | nc -w 5 " + address)
				if status != 0 || strings.TrimSpace(out) != "to-and-fro" {
					t.Errorf("from guest %s to %s: %q (%d)", name, address, out, status)
				}
			}
		}
	}
	return open
}

func is6(ip string) bool {
	a, err := netip.ParseAddr(ip)
	return err == nil && a.Is6()
}
