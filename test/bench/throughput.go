package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/kubeqemu/kubeqemu/netsetup"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

const (
	// carried is how much goes to the guest over the network, and back, each time.
	carried = 32 << 20
	// written is how much the guest writes to its disk, and reads, each time.
	written = 64 << 20
	// linkMTU of every link here.
	linkMTU = 1450
)

// throughputRows: what a guest's network and disk carry. The guest is the tiny one.
func throughputRows(ctx context.Context, b *bench) (rows []row, err error) {
	rows = []row{
		{ID: "network", What: fmt.Sprintf("guest's network, %d MiB to the guest and back, each way", carried>>20), Unit: megabytesPerSecond,
			Ours: series{Name: "through the pod's link, masquerade, bridge and tap"}, Beside: []series{{Name: "a plain tap, the same QEMU arguments"}}},
		{ID: "disk-write", What: fmt.Sprintf("guest's disk, %d MiB written and synced", written>>20), Unit: megabytesPerSecond,
			Ours: series{Name: "overlay"}, Beside: []series{{Name: "the plainest QEMU line with a raw virtio disk"}}},
		{ID: "disk-read", What: fmt.Sprintf("guest's disk, the same %d MiB read", written>>20), Unit: megabytesPerSecond,
			Ours: series{Name: "overlay"}, Beside: []series{{Name: "the plainest QEMU line with a raw virtio disk"}}},
	}
	// QEMU ends with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	folder, err := os.MkdirTemp("", "kubeqemu-bench-")
	if err != nil {
		return rows, err
	}
	defer os.RemoveAll(folder)
	t := &throughput{b: b, folder: folder}
	defer func() { err = errors.Join(err, t.end()) }()
	if err := t.start(ctx); err != nil {
		return rows, err
	}
	for round := range b.rounds + 1 {
		for i, measure := range []func(*carrier) (float64, error){(*carrier).carry, (*carrier).write, (*carrier).read} {
			ours, plain, err := t.turns(measure, i > 0)
			if err != nil {
				return rows, fmt.Errorf("round %d: %w", round, err)
			}
			b.say("%s, round %d: %.0f MB/s, %.0f MB/s", rows[i].ID, round, ours, plain)
			if round > 0 {
				add(&rows[i].Ours, ours)
				add(&rows[i].Beside[0], plain)
			}
		}
	}
	return rows, nil
}

// throughput has the guests that are compared, all at once. They are idle but in their turns.
type throughput struct {
	b      *bench
	folder string
	// ours has a Machine's arguments and a pod's network, tapped the same arguments and a
	// plain tap, raw the plainest line and a raw disk.
	ours, tapped, raw *carrier
	netns             []ns.NetNS
}

// turns measures in the order A B B A, and returns the means.
func (t *throughput) turns(measure func(*carrier) (float64, error), disk bool) (ours, plain float64, err error) {
	other := t.tapped
	if disk {
		other = t.raw
	}
	for _, turn := range []struct {
		guest *carrier
		sum   *float64
	}{{t.ours, &ours}, {other, &plain}, {other, &plain}, {t.ours, &ours}} {
		rate, err := measure(turn.guest)
		if err != nil {
			return 0, 0, err
		}
		*turn.sum += rate / 2
	}
	return ours, plain, nil
}

func (t *throughput) start(ctx context.Context) error {
	m, err := t.machine(ctx)
	if err != nil {
		return err
	}
	for i, guest := range []struct {
		to   **carrier
		link func(*qemuargs.Machine) (*guestLink, error)
	}{{&t.ours, t.podLink}, {&t.tapped, t.plainLink}} {
		link, err := guest.link(m)
		if err != nil {
			return fmt.Errorf("make a guest's network: %w", err)
		}
		own := *m
		own.Disks = append(m.Disks[:0:0], m.Disks...)
		overlay := *m.Disks[0].Overlay
		overlay.Path, overlay.VirtualSize = filepath.Join(t.folder, fmt.Sprintf("overlay-%d", i)), 2*written
		own.Disks[0].Overlay = &overlay
		if *guest.to, err = startMachine(ctx, t.b, &own, link); err != nil {
			return err
		}
	}
	t.raw, err = startRaw(ctx, t.b, m, filepath.Join(t.folder, "raw"))
	return err
}

// machine is the tiny guest's, booted directly, with a network.
func (t *throughput) machine(ctx context.Context) (*qemuargs.Machine, error) {
	kernel := &qemuargs.Kernel{Path: filepath.Join(t.folder, "vmlinuz"), Initrd: filepath.Join(t.folder, "initrd"), Args: kernelArgs}
	if err := unpackKernel(t.b.output("images", "tiny-virtio-container-disk.tar"), kernel); err != nil {
		return nil, fmt.Errorf("unpack the kernel: %w", err)
	}
	l, err := launch(ctx, t.b, t.folder)
	if err != nil {
		return nil, err
	}
	m, err := l.resolve(ctx, t.b.accelerator, map[string]resolve.NIC{"default": {MTU: linkMTU}})
	if err := errors.Join(err, l.end()); err != nil {
		return nil, err
	}
	m.Kernel = kernel
	return m, nil
}

func (t *throughput) end() (failed error) {
	for _, guest := range []*carrier{t.ours, t.tapped, t.raw} {
		if guest != nil {
			failed = errors.Join(failed, guest.end())
		}
	}
	for _, netns := range t.netns {
		failed = errors.Join(failed, netns.Close())
	}
	return failed
}

// guestLink is a tap and what is behind it.
type guestLink struct {
	tap *os.File
	// guest and router are what the guest is told; router is unset where there is none.
	guest  netip.Prefix
	router netip.Addr
	// Who dials the address in client reaches the guest.
	client  ns.NetNS
	address netip.Addr
}

func (t *throughput) newNetNS() (ns.NetNS, error) {
	netns, err := ns.TempNetNS()
	if err != nil {
		return nil, fmt.Errorf("make a network namespace (run this as root): %w", err)
	}
	t.netns = append(t.netns, netns)
	return netns, nil
}

// addressed gives a link of the namespace an address, and brings it up.
func addressed(name, address string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	ip, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetMTU(link, linkMTU), netlink.AddrAdd(link, ip), netlink.LinkSetUp(link))
}

// podLink is what a VMI has: a pod's namespace with a link to the node, wired as
// virt-handler does it. The node is another namespace here.
func (t *throughput) podLink(m *qemuargs.Machine) (*guestLink, error) {
	node, err := t.newNetNS()
	if err != nil {
		return nil, err
	}
	pod, err := t.newNetNS()
	if err != nil {
		return nil, err
	}
	const podAddress, nodeAddress = "10.244.0.5", "10.244.0.1"
	err = pod.Do(func(ns.NetNS) error {
		eth0 := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "pod", PeerNamespace: netlink.NsFd(int(node.Fd()))}
		eth0.Name = "eth0"
		if err := netlink.LinkAdd(eth0); err != nil {
			return err
		}
		if err := addressed("eth0", podAddress+"/24"); err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(nodeAddress)})
	})
	if err == nil {
		err = node.Do(func(ns.NetNS) error { return addressed("pod", nodeAddress+"/24") })
	}
	if err != nil {
		return nil, fmt.Errorf("link a pod's namespace: %w", err)
	}
	facts, err := netsetup.ReadFacts(pod, "eth0")
	if err != nil {
		return nil, err
	}
	plan, err := netsetup.PlanMasquerade(facts, netsetup.Masquerade{Queues: m.NICs[0].Queues})
	if err == nil {
		err = netsetup.Apply(pod, plan)
	}
	if err != nil && !errors.Is(err, netsetup.ErrUnfiltered) {
		return nil, err
	}
	taps, err := netsetup.OpenTap(pod, plan)
	if err != nil {
		return nil, err
	}
	lease := plan.Lease(m.NICs[0].MAC)
	return &guestLink{tap: taps[0], guest: lease.ClientIP, router: lease.Router, client: node, address: netip.MustParseAddr(podAddress)}, nil
}

// plainLink is a tap with an address, and nothing else.
func (t *throughput) plainLink(m *qemuargs.Machine) (*guestLink, error) {
	netns, err := t.newNetNS()
	if err != nil {
		return nil, err
	}
	tap := &netlink.Tuntap{LinkAttrs: netlink.NewLinkAttrs(), Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR, NonPersist: true, Queues: 1}
	tap.Name = "tap0"
	err = netns.Do(func(ns.NetNS) error {
		if err := netlink.LinkAdd(tap); err != nil {
			return err
		}
		return addressed(tap.Name, "10.0.2.1/24")
	})
	if err != nil {
		return nil, fmt.Errorf("make a tap: %w", err)
	}
	guest := netip.MustParsePrefix("10.0.2.2/24")
	return &guestLink{tap: tap.Fds[0], guest: guest, client: netns, address: guest.Addr()}, nil
}

// carrier is a guest whose root shell is on the serial port.
type carrier struct {
	serial net.Conn
	link   *guestLink
	done   int
	end    func() error
}

// startMachine boots a Machine's guest. The guest has the link's tap, and its address.
func startMachine(ctx context.Context, b *bench, m *qemuargs.Machine, link *guestLink) (*carrier, error) {
	if _, err := makeOverlay(m); err != nil {
		return nil, errors.Join(err, link.tap.Close())
	}
	q, err := execBare(ctx, b.qemu, m, link.tap)
	if err != nil {
		return nil, err
	}
	guest := &carrier{serial: q.serial, link: link, end: q.end}
	if err = q.run(); err == nil {
		err = guest.boots()
	}
	if err == nil {
		_, err = guest.do(fmt.Sprintf("killall udhcpc; ip addr flush dev eth0; ip link set eth0 up && ip addr add %s dev eth0", link.guest))
	}
	if err == nil && link.router.IsValid() {
		_, err = guest.do(fmt.Sprintf("ip route replace default via %s dev eth0 onlink", link.router))
	}
	if err != nil {
		return nil, errors.Join(err, guest.end())
	}
	return guest, nil
}

// startRaw boots the same guest with as few arguments as do, and a raw disk whose cache is the overlay's.
func startRaw(ctx context.Context, b *bench, m *qemuargs.Machine, disk string) (*carrier, error) {
	if err := errors.Join(os.WriteFile(disk, nil, 0o600), os.Truncate(disk, 2*written)); err != nil {
		return nil, err
	}
	serial, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	cache := "writeback"
	if m.Disks[0].Overlay.Direct {
		cache = "none"
	}
	args := append(plainArgs(m), "-drive", "file="+disk+",format=raw,if=virtio,cache="+cache)
	cmd := exec.CommandContext(ctx, b.qemu, args...)
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		serial.Close()
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	guest := &carrier{serial: serial, end: func() error {
		cmd.Process.Kill()
		cmd.Wait() // killed, it says
		return serial.Close()
	}}
	if err := guest.boots(); err != nil {
		return nil, errors.Join(err, guest.end())
	}
	return guest, nil
}

// boots waits for the guest's shell, and has it print nothing of itself.
func (g *carrier) boots() error {
	if err := until(g.serial, "tiny# "); err != nil {
		return fmt.Errorf("wait for the guest's shell: %w", err)
	}
	_, err := g.do("stty -echo; PS1=")
	return err
}

// do has the guest's shell run a command, and returns how long it took.
func (g *carrier) do(command string) (time.Duration, error) {
	g.done++
	begin := time.Now()
	if err := g.serial.SetWriteDeadline(begin.Add(patience)); err != nil {
		return 0, err
	}
	// The mark is typed in two parts, lest its echo be taken for it.
	if _, err := fmt.Fprintf(g.serial, "%s\necho status $? do\"\"ne-%d.\n", command, g.done); err != nil {
		return 0, fmt.Errorf("have the guest run %q: %w", command, err)
	}
	if err := until(g.serial, fmt.Sprintf("status 0 done-%d.", g.done)); err != nil {
		return 0, fmt.Errorf("have the guest run %q: %w", command, err)
	}
	return time.Since(begin), nil
}

// carry sends to the guest, which sends all back.
func (g *carrier) carry() (rate float64, err error) {
	var conn net.Conn
	err = g.link.client.Do(func(ns.NetNS) (err error) {
		conn, err = net.DialTimeout("tcp", netip.AddrPortFrom(g.link.address, echoPort).String(), patience)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("connect with the guest: %w", err)
	}
	defer conn.Close()
	took, err := thereAndBack(conn, carried)
	return carried / 1e6 / took, err
}

func (g *carrier) write() (float64, error) {
	took, err := g.do(fmt.Sprintf("dd if=/dev/zero of=/dev/vda bs=1M count=%d conv=fsync 2>/dev/null", written>>20))
	return written / 1e6 / took.Seconds(), err
}

// read reads what was written, past the guest's cache.
func (g *carrier) read() (float64, error) {
	if _, err := g.do("echo 3 >/proc/sys/vm/drop_caches"); err != nil {
		return 0, err
	}
	took, err := g.do(fmt.Sprintf("dd if=/dev/vda of=/dev/null bs=1M count=%d 2>/dev/null", written>>20))
	return written / 1e6 / took.Seconds(), err
}
