// Package kernel tests what only some kernels have, and what some lack.
package kernel

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/launchertest"
	"github.com/kubeqemu/kubeqemu/launcher/process"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/netsetup"
	"github.com/kubeqemu/kubeqemu/netsetup/dhcp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

const (
	podAddress, nodeAddress = "10.244.0.5", "10.244.0.1"
	// echoPort is where the tiny guest sends back what it gets.
	echoPort = 7
	// carried goes to the guest and back, in bytes: many times what fits into a queue.
	carried = 1 << 20
	images  = "../../_output/images"
	// withoutNFTables is set where the kernel has no nftables.
	withoutNFTables = "KUBEQEMU_WITHOUT_NFTABLES"
)

// TestVhostNet: a guest has its address by DHCP, and sends back what it gets by TCP. Threads of
// the kernel, which the guest's QEMU owns, move its packets.
func TestVhostNet(t *testing.T) {
	if _, err := os.Stat("/dev/vhost-net"); err != nil {
		t.Skip("THIS MACHINE'S KERNEL HAS NO vhost-net: make long runs this test in a guest whose kernel has it")
	}
	for _, queues := range []int{1, 2} {
		t.Run(fmt.Sprintf("queues=%d", queues), func(t *testing.T) {
			machine := newMachine(t, queues, v1.Interface{Masquerade: &v1.InterfaceMasquerade{}}, v1.Network{Pod: &v1.PodNetwork{}})
			pod, node := newPod(t)
			guest := start(t, machine, pod, masquerade(t, machine.NICs[0], pod))
			guest.serial.Expect("tiny: eth0 10.0.2.2/24")
			echo(t, node, podAddress)
			if got := vhostThreads(t, guest.pid); got != queues {
				t.Errorf("QEMU owns %d threads of vhost-net, want %d", got, queues)
			}
		})
	}
}

// newMachine is the tiny guest's, as virt-handler resolves it, with vhost-net. Its one card is on a
// network.
func newMachine(t *testing.T, queues int, card v1.Interface, network v1.Network) *qemuargs.Machine {
	t.Helper()
	vmi := &v1.VirtualMachineInstance{}
	vmi.Namespace, vmi.Name, vmi.UID = "default", "guest", "0a1b2c3d-0000-4000-8000-000000000001"
	domain := &vmi.Spec.Domain
	domain.Memory = &v1.Memory{Guest: resource.NewQuantity(128<<20, resource.BinarySI)}
	domain.CPU = &v1.CPU{Cores: uint32(queues)}
	domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{KernelArgs: "console=ttyS0 quiet",
		Container: &v1.KernelBootContainer{Image: "tiny", KernelPath: "/boot/vmlinuz", InitrdPath: "/boot/initrd"}}}
	card.Name, network.Name = "default", "default"
	domain.Devices = v1.Devices{AutoattachGraphicsDevice: ptr.To(false), NetworkInterfaceMultiQueue: ptr.To(queues > 1), Interfaces: []v1.Interface{card}}
	vmi.Spec.Networks = []v1.Network{network}
	v1.Default(vmi)
	program := launchertest.Program(t, "qemu-system-x86_64")
	version, err := process.QEMUVersion(t.Context(), program, "")
	if err != nil {
		t.Fatal(err)
	}
	boot := kernel(t, "tiny-virtio")
	machine, errs := resolve.Machine(vmi, resolve.Host{Accelerator: qemuargs.TCG, QEMUVersion: version, NICs: map[string]resolve.NIC{"default": {MTU: 1500}},
		Kernel: &qemuargs.KernelFacts{Path: filepath.Join(boot, "vmlinuz"), Initrd: filepath.Join(boot, "initrd")}})
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	// Resolved machines have it with KVM alone, but it works without KVM too.
	machine.NICs[0].Vhost = true
	return machine
}

// kernel unpacks the kernel and the initramfs of a tiny guest's image, and returns their folder.
func kernel(t *testing.T, image string) string {
	t.Helper()
	folder := t.TempDir()
	// The archive has one layer.
	unpack := fmt.Sprintf("tar -xOf %s/%s-container-disk.tar --wildcards '*.tar.gz' | tar -xzf - -C %s --no-same-owner boot/vmlinuz boot/initrd", images, image, folder)
	if said, err := exec.Command("sh", "-c", unpack).CombinedOutput(); err != nil {
		t.Fatalf("unpack the guest's kernel (config/images/build.sh tiny nested makes it): %v: %s", err, said)
	}
	return filepath.Join(folder, "boot")
}

// newPod is a pod's network namespace with a link to a node, which is a namespace too.
func newPod(t *testing.T) (pod, node ns.NetNS) {
	t.Helper()
	pod, node = newNetNS(t), newNetNS(t)
	inside(t, pod, func() error {
		eth0 := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "pod", PeerNamespace: netlink.NsFd(int(node.Fd()))}
		eth0.Name = "eth0"
		if err := netlink.LinkAdd(eth0); err != nil {
			return err
		}
		if err := configure("eth0", podAddress+"/24"); err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(nodeAddress)})
	})
	inside(t, node, func() error { return configure("pod", nodeAddress+"/24") })
	return pod, node
}

func newNetNS(t *testing.T) ns.NetNS {
	t.Helper()
	netns, err := ns.TempNetNS()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netns.Close() })
	return netns
}

func inside(t *testing.T, netns ns.NetNS, do func() error) {
	t.Helper()
	if err := netns.Do(func(ns.NetNS) error { return do() }); err != nil {
		t.Fatal(err)
	}
}

func configure(name, address string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	ip, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, ip); err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

type guest struct {
	pid    int
	serial *testkit.Transcript
}

// masquerade wires the pod as virt-handler does, and gives the guest its address.
func masquerade(t *testing.T, nic qemuargs.NIC, pod ns.NetNS) *netsetup.Plan {
	t.Helper()
	facts, err := netsetup.ReadFacts(pod, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := netsetup.PlanMasquerade(facts, netsetup.Masquerade{Queues: nic.Queues})
	if err == nil {
		err = netsetup.Apply(pod, plan)
	}
	if err != nil {
		t.Fatal(err)
	}
	serveDHCP(t, pod, plan, nic.MAC)
	return plan
}

// start starts QEMU as virt-launcher does, on the tap of a plan.
func start(t *testing.T, m *qemuargs.Machine, pod ns.NetNS, plan *netsetup.Plan) guest {
	t.Helper()
	nic := m.NICs[0]
	files := map[string]*os.File{}
	taps, err := netsetup.OpenTap(pod, plan)
	bring(files, qemuargs.InheritedTap, nic.Name, taps)
	if err != nil {
		t.Fatal(err)
	}
	vhost, err := netsetup.OpenVhostNet(nic.Queues)
	bring(files, qemuargs.InheritedVhost, nic.Name, vhost)
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread() // QEMU ends with the thread that starts it
	t.Cleanup(runtime.UnlockOSThread)
	stderr, said := testkit.Pipe(t, "QEMU's standard error")
	q, err := process.StartQEMU(launchertest.Program(t, "qemu-system-x86_64"), m, false, files, stderr)
	for _, f := range files {
		f.Close() // QEMU has its own
	}
	if err != nil {
		t.Fatal(err)
	}
	serial := testkit.NewTranscript(t, "the guest's serial port")
	read := make(chan struct{})
	go func() { defer close(read); io.Copy(serial, q.Serial) }()
	client := qmp.New(q.QMP, qmp.Options{Logger: slog.New(slog.DiscardHandler), Timeout: testkit.Patience})
	t.Cleanup(func() {
		q.End()
		q.Serial.Close()
		<-read
		client.Close()
		if t.Failed() {
			t.Logf("QEMU: %s\nits arguments: %q\nthe guest: %s", said, qemuargs.Strings(m.Args()), serial)
		}
	})
	if err := client.Connect(); err != nil {
		t.Fatalf("connect to QEMU: %v: %s", err, said)
	}
	if err := client.Cont(t.Context()); err != nil {
		t.Fatal(err)
	}
	return guest{pid: q.PID(), serial: serial}
}

func bring(files map[string]*os.File, kind qemuargs.InheritedKind, nic string, brought []*os.File) {
	for queue, f := range brought {
		files[qemuargs.Inherited{Kind: kind, Name: nic, Index: queue}.String()] = f
	}
}

// serveDHCP gives the guest its address.
func serveDHCP(t *testing.T, pod ns.NetNS, plan *netsetup.Plan, mac string) {
	t.Helper()
	socket, err := netsetup.ListenDHCP(pod, plan)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.FilePacketConn(socket)
	socket.Close()
	if err != nil {
		t.Fatal(err)
	}
	server := dhcp.Serve(conn, plan.Lease(mac), slog.New(slog.DiscardHandler))
	t.Cleanup(func() { server.Close() })
}

// echo sends to the guest's address, and the guest sends all back.
func echo(t *testing.T, from ns.NetNS, address string) {
	t.Helper()
	var conn net.Conn
	inside(t, from, func() (err error) {
		conn, err = net.DialTimeout("tcp", netip.AddrPortFrom(netip.MustParseAddr(address), echoPort).String(), testkit.Patience)
		return err
	})
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(testkit.Patience)); err != nil {
		t.Fatal(err)
	}
	sent, got := make([]byte, carried), make([]byte, carried)
	rand.Read(sent)
	failed := make(chan error, 1)
	go func() { _, err := conn.Write(sent); failed <- err }()
	if n, err := io.ReadFull(conn, got); err != nil {
		t.Fatalf("after %d bytes of the echo: %v", n, err)
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(sent, got) {
		t.Error("the guest sent back other bytes")
	}
}

// vhostThreads counts the threads that move packets for a process. The kernel names them after
// the process: they are kernel threads, and since Linux 6.4 threads of the process.
func vhostThreads(t *testing.T, pid int) (count int) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/task/*/comm")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		comm, _ := os.ReadFile(name) // a thread may have ended since
		if strings.TrimSpace(string(comm)) == fmt.Sprintf("vhost-%d", pid) {
			count++
		}
	}
	return count
}
