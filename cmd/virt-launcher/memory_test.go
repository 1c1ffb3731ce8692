//go:build long && !race

package main

import (
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/netsetup/dhcp"
)

// maxWritten is the budget, in kB, of the memory that virt-launcher has written. It shares the rest, which is its program, with the node's other launchers.
const maxWritten = 4 << 10

// TestMemory measures virt-launcher, as it is shipped, beside a running guest,
// after DHCP and a console. The race detector would take memory of its own.
func TestMemory(t *testing.T) {
	t.Setenv("GOMAXPROCS", "2") // as in a pod
	p := launch(t)
	server, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 78, 0, 1)})
	p.must(err)
	defer server.Close()
	socket, err := server.File()
	p.must(err)
	defer socket.Close()
	guest := net.UDPAddr{IP: net.IPv4(127, 78, 0, 2), Port: dhcpv4.ClientPort}
	mac := net.HardwareAddr{0x52, 0x54, 0, 0, 0, 1}
	p.request.DHCP = []control.DHCPServer{{NIC: "default", Lease: dhcp.Lease{ClientMAC: mac.String(), ClientIP: netip.MustParsePrefix("127.78.0.2/8"), ServerIP: netip.MustParseAddr("127.78.0.1")}}}
	running := p.boot(control.File{Name: control.DHCPFile("default"), File: socket})
	renew(p, &guest, mac, server.LocalAddr())
	chat(p)

	launcher, qemu := settled(p, p.cmd.Process.Pid), memoryOf(p, running.QEMUPID)
	t.Logf("virt-launcher: VmRSS %d kB (highest %d kB), Pss %d kB, written %d kB", launcher["VmRSS"], launcher["VmHWM"], launcher["Pss"], launcher["Anonymous"])
	t.Logf("QEMU with %d MiB of guest memory: VmRSS %d kB, Pss %d kB, private dirty %d kB", p.request.Machine.MemoryBytes>>20, qemu["VmRSS"], qemu["Pss"], qemu["Private_Dirty"])
	if launcher["VmRSS"] == 0 || launcher["VmRSS"] > maxRSS {
		t.Errorf("virt-launcher has %d kB resident, its budget is %d kB", launcher["VmRSS"], maxRSS)
	}
	if launcher["Anonymous"] == 0 || launcher["Anonymous"] > maxWritten {
		t.Errorf("virt-launcher has written %d kB, its budget is %d kB: cmd/qemuargs' TestMemoryUEFITPM counts on that", launcher["Anonymous"], maxWritten)
	}
	p.keys("P")
	p.expectEnd(0, control.ReasonGuestShutdown)
}

// renew asks for the lease as a guest does that has it.
func renew(p *launched, guest *net.UDPAddr, mac net.HardwareAddr, server net.Addr) {
	p.Helper()
	conn, err := net.ListenUDP("udp4", guest)
	p.must(err)
	defer conn.Close()
	request, err := dhcpv4.New(dhcpv4.WithHwAddr(mac), dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithClientIP(guest.IP))
	p.must(err)
	_, err = conn.WriteTo(request.ToBytes(), server)
	p.must(err, conn.SetReadDeadline(time.Now().Add(patience)))
	_, _, err = conn.ReadFrom(make([]byte, 2000))
	p.must(err)
}

// chat attaches a console, has a KiB echoed, and leaves.
func chat(p *launched) {
	p.Helper()
	conn, err := net.Dial("unix", p.path("console.sock"))
	p.must(err)
	defer conn.Close()
	p.must(conn.SetDeadline(time.Now().Add(patience)))
	text := []byte(strings.Repeat("0123456789abcde\n", 1<<6))
	go conn.Write(text)
	_, err = io.ReadFull(conn, text)
	p.must(err)
}

// settled waits until a process' memory does not change any more: Go gives
// back what it has freed in the background.
func settled(p *launched, pid int) map[string]int {
	p.Helper()
	const still = 3 * time.Second
	now := memoryOf(p, pid)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for begin, since := time.Now(), time.Now(); time.Since(since) < still && time.Since(begin) < 10*still; {
		<-tick.C
		next := memoryOf(p, pid)
		if next["VmRSS"] != now["VmRSS"] {
			now, since = next, time.Now()
		}
	}
	return now
}
