package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestMultus: a guest is on the pod network and, by the real Multus, on a LAN that has a DHCP server
// of its own, on the same LAN with an address of the network's IPAM, and on it by macvlan. A network
// that is missing, or not for the VMI, is told, and so is a node without Multus.
func TestMultus(t *testing.T) {
	t.Parallel()
	ns, other := namespace(t), namespace(t)
	without := create(t, ns, tiny("without", on("lan", "lan")))
	failed := without.await(v1.Failed)
	if ready := failed.Status.Condition(v1.ConditionReady); ready == nil || !strings.Contains(ready.Message, `network "lan": the pod has no interface "pod`) || !strings.Contains(ready.Message, "is Multus installed on this node?") {
		t.Errorf("without Multus: %+v", failed.Status)
	}
	without.delete()

	l := newLAN(t)
	installMultus(t)
	m := createVM(t, ns, "home", v1.RunStrategyAlways, on("lan", "lan"), on("fixed", "lan-20"), on("shared", "shared"))
	// namespaceIsolation is on.
	denied := create(t, other, tiny("denied", on("lan", ns+"/lan")))
	err := poll(func() error {
		if m.uid() == "" {
			return fmt.Errorf("VM %s has no VMI", m.name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	m.awaitCondition(v1.ConditionSynchronized, v1.ReasonSandboxFailed, "lan")
	apply(t, ns, lanNetwork+fixedNetwork+macvlanNetwork)
	m.runs("")
	denied.awaitCondition(v1.ConditionSynchronized, v1.ReasonSandboxFailed, "namespace")
	denied.delete()
	if c := m.get().Status.Condition(v1.ConditionSynchronized); c != nil {
		t.Errorf("mended, the VMI says %+v", c)
	}

	leased, shared := l.awaitLease(m.vmi, "lan"), l.awaitLease(m.vmi, "shared")
	log := m.log()
	for _, pattern := range []string{`tiny: eth0 10\.0\.2\.2/24 via 10\.0\.2\.1`, "tiny: eth1 " + regexp.QuoteMeta(leased) + "/24 via none",
		`tiny: eth2 192\.168\.78\.20/24 via none`, "tiny: eth3 " + regexp.QuoteMeta(shared) + "/24 via none"} {
		log.shows(pattern)
	}
	for i, want := range []v1.NetworkInterfaceStatus{{Name: "default", IP: m.pod().Status.PodIP, PodInterfaceName: "eth0", InfoSource: "domain"},
		{Name: "lan", InfoSource: "domain, multus-status"}, {Name: "fixed", IP: "192.168.78.20", InfoSource: "domain, multus-status"}, {Name: "shared", InfoSource: "domain, multus-status"}} {
		if got := m.get().Status.Interfaces[i]; got.Name != want.Name || got.IP != want.IP || got.InfoSource != want.InfoSource || got.MAC == "" || want.PodInterfaceName != "" && got.PodInterfaceName != want.PodInterfaceName {
			t.Errorf("status.interfaces[%d] is %+v, want %+v", i, got, want)
		}
	}
	shell := m.shell()
	// All are on one LAN. Each address is to be reached by its own card.
	if out, status := shell.run("for i in eth1 eth2 eth3; do echo 1 >/proc/sys/net/ipv4/conf/$i/arp_ignore; echo 2 >/proc/sys/net/ipv4/conf/$i/arp_announce; done"); status != 0 {
		t.Fatal(out)
	}
	l.serve(8080)
	for _, address := range []string{leased, "192.168.78.20", shared} {
		if err := poll(func() error { return l.echoes(address, 7, 100_000) }); err != nil {
			t.Errorf("from the LAN to %s: %v", address, err)
		}
	}
	for _, nic := range []string{"eth1", "eth2", "eth3"} {
		command := "ip route replace " + lanAddress + "/32 dev " + nic + " && echo to-and-fro | nc -w 5 " + lanAddress + " 8080"
		if out, status := shell.run(command); status != 0 || strings.TrimSpace(out) != "to-and-fro" {
			t.Errorf("from the guest by %s: %q (%d)", nic, out, status)
		}
	}
	const hardware = "for i in /sys/class/net/eth*; do echo ${i##*/} $(cat $i/address) $(readlink -f $i/device); done"
	before, _ := shell.run(hardware)

	// KubeVirt's example has no other network than that of Multus.
	apply(t, ns, network("ptp-conf", `{"cniVersion": "1.0.0", "name": "ptp-conf", "type": "ptp", "ipam": {"type": "host-local", "subnet": "198.51.100.0/28"}}`)+
		"---\n"+examples["vmi-multus-ptp"].manifest)
	example := vmi{t: t, namespace: ns, name: "vmi-multus-ptp"}
	if status := example.await(v1.Running).Status.Interfaces; len(status) != 1 || !strings.HasPrefix(status[0].IP, "198.51.100.") {
		t.Errorf("the example's status.interfaces is %+v", status)
	}

	// A network of Multus in the place of the pod's.
	apply(t, ns, strings.NewReplacer("lan-20", "lan-21", "78.20", "78.21").Replace(fixedNetwork))
	first := create(t, ns, tiny("first", func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Devices.Interfaces = []v1.Interface{{Name: "lan", Bridge: &v1.InterfaceBridge{}}}
		s.Networks = []v1.Network{{Name: "lan", Multus: &v1.MultusNetwork{NetworkName: "lan-21", Default: true}}}
	}))
	if status := first.await(v1.Running).Status.Interfaces; len(status) != 1 || status[0].IP != "192.168.78.21" || status[0].PodInterfaceName != "eth0" {
		t.Errorf("in the place of the pod's network, status.interfaces is %+v", status)
	}

	uid := m.uid()
	kubectl(t, "-n", ns, "delete", "vmi", m.name, "--wait=false")
	m.runs(uid)
	if again := l.awaitLease(m.vmi, "lan"); again != leased {
		t.Errorf("restarted, the guest has %s, and had %s", again, leased)
	}
	if after, _ := m.shell().run(hardware); after != before || strings.Count(after, "\n") != 4 {
		t.Errorf("the cards were\n%s and are, after a restart,\n%s", before, after)
	}
	if err := poll(func() error { return nodeEchoes(example.get().Status.Interfaces[0].IP, 7) }); err != nil {
		t.Errorf("the example: %v", err)
	}
	if err := poll(func() error { return l.echoes("192.168.78.21", 7, 100_000) }); err != nil {
		t.Errorf("in the place of the pod's network: %v", err)
	}
	first.delete()
	example.delete()
	kubectl(t, "-n", ns, "delete", "vm", m.name, "--timeout=600s")
}
