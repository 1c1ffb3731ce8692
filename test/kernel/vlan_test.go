package kernel

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/netsetup"
)

// TestVLAN: a guest that knows nothing of VLANs is in VLAN 20, as docs/lan.md puts it there with the CNI
// plugin bridge. The DHCP server in VLAN 20 gives the guest its address, and not the server beside it.
// The guest sends back what it gets from the VLAN. TestLANPage follows docs/lan.md to the letter, on a node that has VLANs.
func TestVLAN(t *testing.T) {
	if err := shell(t, newNetNS(t), "ip link add probe0 type bridge vlan_filtering 1; ip link add link probe0 name probe1 type vlan id 20"); err != nil {
		t.Skipf("THIS MACHINE'S KERNEL HAS NO VLANS: make long runs this test in a guest whose kernel has them: %v", err)
	}
	machine := newMachine(t, 1, v1.Interface{Bridge: &v1.InterfaceBridge{}}, v1.Network{Multus: &v1.MultusNetwork{NetworkName: "vlan-20"}})
	mac := machine.NICs[0].MAC
	lan, node, pod := newNetNS(t), newNetNS(t), newNetNS(t)
	lay(t, lan, node)
	if err := shell(t, node, `ip link add br-lan type bridge; ip link set eth1 master br-lan; ip link set br-lan up
		ip link set br-lan type bridge vlan_filtering 1
		bridge vlan add dev eth1 vid 20`); err != nil {
		t.Fatal(err)
	}
	serveLAN(t, lan, "switch", "192.168.1")
	serveLAN(t, lan, "switch.20", "192.168.20")
	attach(t, node, pod, mac)
	guest := start(t, machine, pod, bridge(t, pod, mac))
	guest.serial.Expect("tiny: eth0 192.168.20.100/24")
	echo(t, lan, "192.168.20.100")
}

// lay lays a cable from the node's card eth1 to a switch, whose VLAN 20 has the link switch.20.
func lay(t *testing.T, lan, node ns.NetNS) {
	t.Helper()
	inside(t, node, func() error {
		eth1 := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "switch", PeerNamespace: netlink.NsFd(int(lan.Fd()))}
		eth1.Name = "eth1"
		return netlink.LinkAdd(eth1)
	})
	err := shell(t, node, "ip link set eth1 up")
	if err == nil {
		err = shell(t, lan, "ip link set switch up; ip link add link switch name switch.20 type vlan id 20")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// shell runs commands in a network namespace, until one fails.
func shell(t *testing.T, netns ns.NetNS, script string) error {
	t.Helper()
	cmd := exec.Command("sh", "-ec", script)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	inside(t, netns, cmd.Start)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%q: %w: %s", script, err, &said)
	}
	return nil
}

// serveLAN gives a link the address .1 of a /24, and starts a DHCP server there. The server has one
// address to give, .100.
func serveLAN(t *testing.T, lan ns.NetNS, link, prefix string) {
	t.Helper()
	inside(t, lan, func() error { return configure(link, prefix+".1/24") })
	server := exec.Command("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--user=root", "--pid-file=", "--port=0",
		"--interface="+link, "--bind-interfaces", "--dhcp-authoritative", "--no-ping", "--dhcp-option=3",
		fmt.Sprintf("--dhcp-range=%[1]s.100,%[1]s.100,1h", prefix), "--dhcp-leasefile="+filepath.Join(t.TempDir(), "leases"))
	var said strings.Builder
	server.Stdout, server.Stderr = &said, &said
	inside(t, lan, server.Start)
	t.Cleanup(func() {
		server.Process.Kill()
		server.Wait()
		if t.Failed() {
			t.Logf("dnsmasq on %s: %s", link, &said)
		}
	})
}

// attach has the plugin bridge give the pod its interface net1 in the VLAN, as Multus does it for a guest's MAC.
func attach(t *testing.T, node, pod ns.NetNS, mac string) {
	t.Helper()
	const (
		plugins = "/usr/lib/cni"
		config  = `{"cniVersion": "1.0.0", "name": "vlan-20", "type": "bridge", "bridge": "br-lan", "vlan": 20, "preserveDefaultVlan": false, "ipam": {}}`
	)
	cmd := exec.Command(plugins + "/bridge")
	cmd.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID=pod", fmt.Sprintf("CNI_NETNS=/proc/%d/fd/%d", os.Getpid(), pod.Fd()),
		"CNI_IFNAME=net1", "CNI_PATH="+plugins, "CNI_ARGS=IgnoreUnknown=1;MAC="+mac)
	var said strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(config), &said, &said
	inside(t, node, cmd.Start)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("CNI ADD with the plugin bridge: %v: %s", err, &said)
	}
}

// bridge wires the pod's interface net1 as virt-handler does.
func bridge(t *testing.T, pod ns.NetNS, mac string) *netsetup.Plan {
	t.Helper()
	facts, err := netsetup.ReadFacts(pod, "net1")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := netsetup.PlanBridge(facts, netsetup.Bridged{MAC: mac, Beside: true})
	if err == nil {
		err = netsetup.Apply(pod, plan)
	}
	if err != nil {
		t.Fatal(err)
	}
	return plan
}
