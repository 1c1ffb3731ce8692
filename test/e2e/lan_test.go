package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// lan is a network of machines: a network namespace with a switch, to which each node has two network
// cards, eth1 and eth2. eth1 is a port of the node's bridge br-lan, as docs/lan.md has it. The
// namespace has the address lanAddress, and a DHCP server, as a router has them.
type lan struct {
	t      *testing.T
	netns  ns.NetNS
	leases string // the DHCP server's file
}

// 192.168.78.0/24 is on the same wire, without DHCP: of two cards in one network, a guest may answer by the
// wrong one, and a card whose address comes from IPAM is held to that address.
const lanAddress = "192.168.77.1"

// newNetNS makes a network namespace that lasts until the test ends, and tells a process in it.
func newNetNS(t *testing.T) (ns.NetNS, int) {
	t.Helper()
	holder := exec.Command("sleep", "infinity")
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { holder.Process.Kill(); holder.Wait() })
	netns, err := ns.GetNS(fmt.Sprintf("/proc/%d/ns/net", holder.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netns.Close() })
	return netns, holder.Process.Pid
}

// newLAN connects all nodes to a new network with a DHCP server, until the test ends.
func newLAN(t *testing.T) lan {
	t.Helper()
	l := unbridgedLAN(t)
	for _, node := range nodeNames() {
		if _, err := onNodeNamed(node, `ip link add br-lan type bridge && ip link set eth1 master br-lan && ip link set eth1 up && ip link set br-lan up`); err != nil {
			t.Fatal(err)
		}
	}
	l.serveDHCP("switch", "192.168.77.100,192.168.77.150")
	return l
}

// nodeNames are the cluster's nodes.
func nodeNames() []string {
	if os.Getenv(nodesVariable) == "2" {
		return []string{firstName, secondName}
	}
	return []string{firstName}
}

// unbridgedLAN is newLAN without the nodes' bridges and without a DHCP server.
func unbridgedLAN(t *testing.T) lan {
	t.Helper()
	netns, _ := newNetNS(t)
	l := lan{t: t, netns: netns, leases: filepath.Join(t.TempDir(), "leases")}
	l.inside("ip", "link", "add", "switch", "type", "bridge")
	l.inside("ip", "address", "add", lanAddress+"/24", "dev", "switch")
	l.inside("ip", "address", "add", "192.168.78.1/24", "dev", "switch")
	l.inside("ip", "link", "set", "switch", "up")
	for _, node := range nodeNames() {
		l.connect(node)
	}
	return l
}

func (l lan) connect(node string) {
	l.t.Helper()
	for _, card := range []string{"eth1", "eth2"} {
		port := node + card
		l.inside("ip", "link", "add", port, "type", "veth", "peer", "name", card, "netns", strconv.Itoa(nodePID(l.t, node)))
		l.inside("ip", "link", "set", port, "master", "switch", "up")
	}
	if _, err := onNodeNamed(node, `ip link set eth2 up`); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		if _, err := onNodeNamed(node, `ip link del br-lan; ip link del eth1; ip link del eth2`); err != nil {
			l.t.Error(err)
		}
	})
}

// inside runs a program to its end in the network's namespace.
func (l lan) inside(name string, args ...string) string {
	l.t.Helper()
	var text string
	err := l.netns.Do(func(ns.NetNS) (err error) {
		text, err = output("", name, args...)
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return text
}

// serveDHCP gives addresses of a range to who is behind an interface of the network, and no default route: the guests have another.
func (l lan) serveDHCP(behind, addresses string, more ...string) {
	l.t.Helper()
	server := exec.Command("dnsmasq", append([]string{"--keep-in-foreground", "--conf-file=/dev/null", "--user=root", "--pid-file=", "--port=0", "--interface=" + behind, "--bind-interfaces",
		"--dhcp-authoritative", "--no-ping", "--dhcp-range=" + addresses + ",1h", "--dhcp-option=3", "--dhcp-leasefile=" + l.leases}, more...)...)
	said := &strings.Builder{}
	server.Stdout, server.Stderr = said, said
	if err := l.netns.Do(func(ns.NetNS) error { return server.Start() }); err != nil {
		l.t.Fatalf("start dnsmasq (Debian's package dnsmasq-base): %v", err)
	}
	l.t.Cleanup(func() {
		server.Process.Kill()
		server.Wait()
		if l.t.Failed() {
			l.t.Logf("dnsmasq: %s", said)
		}
	})
}

// lease is the address that the network's DHCP server has given to a MAC.
func (l lan) lease(mac string) (string, error) {
	text, err := os.ReadFile(l.leases)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		// The time, the MAC, the address, the name.
		if fields := strings.Fields(line); len(fields) > 2 && fields[1] == mac {
			return fields[2], nil
		}
	}
	return "", fmt.Errorf("dnsmasq has no lease of %s: %q", mac, text)
}

// awaitLease waits until the guest's interface has its address from the network's DHCP server. The Debian guest boots for minutes.
func (l lan) awaitLease(v vmi, nic string) string {
	l.t.Helper()
	var address string
	err := poll(func() (err error) {
		address, err = l.lease(nicOf(v.get(), nic).MAC)
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return address
}

// dial connects from the network.
func (l lan) dial(address string, port int) (conn net.Conn, err error) {
	err = l.netns.Do(func(ns.NetNS) (err error) {
		conn, err = net.DialTimeout("tcp4", net.JoinHostPort(address, strconv.Itoa(port)), 5*time.Second)
		return err
	})
	return conn, err
}

// echoes sends bytes to an echo server, and wants them back.
func (l lan) echoes(address string, port, size int) error {
	conn, err := l.dial(address, port)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	sent := make([]byte, size)
	for i := range sent {
		sent[i] = byte(i * i >> 3)
	}
	go conn.Write(sent)
	got := make([]byte, size)
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if string(got) != string(sent) {
		return fmt.Errorf("%s port %d echoes other bytes", address, port)
	}
	return nil
}

// serve echoes what comes to a port of the namespace's own addresses.
func (l lan) serve(port int) {
	l.t.Helper()
	var listener net.Listener
	err := l.netns.Do(func(ns.NetNS) (err error) {
		listener, err = net.Listen("tcp4", ":"+strconv.Itoa(port))
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				io.Copy(conn, conn)
			}()
		}
	}()
}

// nodePID is a node's first process, as this machine numbers it.
func nodePID(t *testing.T, node string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "_output", "cluster", os.Getenv(clusterVariable), "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	var state struct {
		Processes []struct {
			Name string
			PID  int
		}
	}
	if err := json.Unmarshal(text, &state); err != nil {
		t.Fatal(err)
	}
	for _, p := range state.Processes {
		if p.Name == node {
			return p.PID
		}
	}
	t.Fatalf("the cluster has no %s", node)
	return 0
}

// installMultus has Multus connect the pods, until the test ends. The pods that it has connected to
// more than the cluster's network must be gone by then.
func installMultus(t *testing.T) {
	t.Helper()
	if _, err := output("", "cluster", "multus", "--name", os.Getenv(clusterVariable)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := output("", "cluster", "multus", "--name", os.Getenv(clusterVariable), "--off"); err != nil {
			t.Error(err)
		}
	})
}

// network is a NetworkAttachmentDefinition.
func network(name, config string) string {
	return fmt.Sprintf("---\napiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: %s}\nspec: {config: '%s'}\n", name, config)
}

// The networks of docs/lan.md.
var (
	lanNetwork     = network("lan", `{"cniVersion": "1.0.0", "name": "lan", "type": "bridge", "bridge": "br-lan", "ipam": {}}`)
	fixedNetwork   = network("lan-20", `{"cniVersion": "1.0.0", "name": "lan-20", "type": "bridge", "bridge": "br-lan", "ipam": {"type": "static", "addresses": [{"address": "192.168.78.20/24"}]}}`)
	macvlanNetwork = network("shared", `{"cniVersion": "1.0.0", "name": "shared", "type": "macvlan", "master": "eth2", "mode": "bridge", "ipam": {}}`)
)

// on adds an interface of the guest's on a network of Multus.
func on(nic, definition string) func(*v1.VirtualMachineInstanceSpec) {
	return func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Devices.Interfaces = append(s.Domain.Devices.Interfaces, v1.Interface{Name: nic, Bridge: &v1.InterfaceBridge{}})
		s.Networks = append(s.Networks, v1.Network{Name: nic, Multus: &v1.MultusNetwork{NetworkName: definition}})
	}
}

// nicOf is the status of an interface of the spec's.
func nicOf(v *v1.VirtualMachineInstance, name string) v1.NetworkInterfaceStatus {
	for _, s := range v.Status.Interfaces {
		if s.Name == name {
			return s
		}
	}
	return v1.NetworkInterfaceStatus{}
}
