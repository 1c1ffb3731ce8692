package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

const (
	// carried is how much goes to the guest over the network, and back, each time.
	carried = 32 << 20
	// trips is how often one byte goes to the guest and back, each time.
	trips = 500
	// written is how much the guest writes to its disk, and reads, each time.
	written = 64 << 20
)

// carrier is a guest whose root shell is on the serial port.
type carrier struct {
	serial net.Conn
	link   *guestLink
	done   int
}

// networkedMachine returns the Machine of a tiny guest with a network.
func networkedMachine(r *run, folder string) *qemuargs.Machine {
	return tinyMachine(r, folder, kernelArgs, map[string]resolve.NIC{"default": {MTU: linkMTU}})
}

// startMachine boots a Machine's guest. The guest has the link's tap, and its address.
// Its disk is written to the file overlay.
func startMachine(r *run, m *qemuargs.Machine, overlay string, link *guestLink) *carrier {
	q := execBare(r, withOverlay(m, overlay, 2*written), []*os.File{link.tap})
	q.run()
	guest := &carrier{serial: q.serial, link: link}
	guest.boots()
	guest.do("killall udhcpc; ip addr flush dev eth0; ip link set eth0 up")
	guest.do(fmt.Sprintf("ip addr add %s dev eth0", link.guest))
	if link.router.IsValid() {
		guest.do(fmt.Sprintf("ip route replace default via %s dev eth0 onlink", link.router))
	}
	return guest
}

// startRaw boots the same guest with as few arguments as do, and a raw disk whose cache is the overlay's.
func startRaw(r *run, m *qemuargs.Machine, disk string) *carrier {
	check(errors.Join(os.WriteFile(disk, nil, 0o600), os.Truncate(disk, 2*written)))
	cache := map[bool]string{false: "writeback", true: "none"}[m.Disks[0].Overlay.Direct]
	guest := &carrier{serial: startPlain(r, m, "-drive", "file="+disk+",format=raw,if=virtio,cache="+cache)}
	guest.boots()
	return guest
}

// boots waits for the guest's shell, and has it print nothing of itself.
func (g *carrier) boots() {
	until(g.serial, "tiny# ")
	g.do("stty -echo; PS1=")
}

// do has the guest's shell run a command, and returns how long it took.
func (g *carrier) do(command string) time.Duration {
	g.done++
	begin := time.Now()
	doing(fmt.Sprintf("have the guest run %q", command), func() {
		check(g.serial.SetWriteDeadline(begin.Add(patience)))
		// The mark is typed in two parts, lest its echo be taken for it.
		must(fmt.Fprintf(g.serial, "%s\necho status $? do\"\"ne-%d.\n", command, g.done))
		until(g.serial, fmt.Sprintf("status 0 done-%d.", g.done))
	})
	return time.Since(begin)
}

// carry sends to the guest, which sends all back. It returns MB/s.
func (g *carrier) carry() float64 {
	conn := g.dial()
	defer conn.Close()
	return carried / 1e6 / thereAndBack(conn, carried)
}

// trip sends one byte to the guest, which sends it back, many times. It returns the mean in milliseconds.
func (g *carrier) trip() float64 {
	conn := g.dial()
	defer conn.Close()
	begin := time.Now()
	for range trips {
		thereAndBack(conn, 1)
	}
	return inMilliseconds(time.Since(begin)) / trips
}

// dial connects with the guest's program that sends all back.
func (g *carrier) dial() (conn net.Conn) {
	err := g.link.client.Do(func(ns.NetNS) (err error) {
		conn, err = net.DialTimeout("tcp", netip.AddrPortFrom(g.link.address, echoPort).String(), patience)
		return err
	})
	check(err, "connect with the guest")
	return conn
}

// write returns MB/s.
func (g *carrier) write() float64 {
	took := g.do(fmt.Sprintf("dd if=/dev/zero of=/dev/vda bs=1M count=%d conv=fsync 2>/dev/null", written>>20))
	return written / 1e6 / took.Seconds()
}

// read reads what was written, past the guest's cache. It returns MB/s.
func (g *carrier) read() float64 {
	g.do("echo 3 >/proc/sys/vm/drop_caches")
	took := g.do(fmt.Sprintf("dd if=/dev/vda of=/dev/null bs=1M count=%d 2>/dev/null", written>>20))
	return written / 1e6 / took.Seconds()
}

// addTurns adds what two guests carry, in the order A B B A.
func (r *run) addTurns(id string, measure func(*carrier) float64, ours, beside *carrier) {
	own, other := r.abba(
		func(*run) []float64 { return []float64{measure(ours)} },
		func(*run) []float64 { return []float64{measure(beside)} })
	r.add(id, own[0], other[0])
}

// measureDisk measures what a guest's disk carries. The guest is the tiny one.
func measureDisk(r *run) {
	r.lockThread()
	folder := r.folder("")
	m := networkedMachine(r, folder)
	ours := startMachine(r, m, filepath.Join(folder, "overlay"), plainLink(newSpace(r), space{}, m))
	raw := startRaw(r, m, filepath.Join(folder, "raw"))
	r.eachRound(func(r *run) {
		r.addTurns("disk-write", (*carrier).write, ours, raw)
		r.addTurns("disk-read", (*carrier).read, ours, raw)
	})
}
