package local

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// loopback is where ports are listened on, unless somebody names another address.
var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// ParseForward reads [ADDRESS:]PORT:GUESTPORT[/udp]. PORT 0 means any port that is free.
func ParseForward(text string) (qemuargs.Forward, error) {
	f := qemuargs.Forward{Protocol: qemuargs.TCP, Address: loopback}
	ports, protocol, named := strings.Cut(text, "/")
	if named {
		f.Protocol = qemuargs.Protocol(strings.ToLower(protocol))
	}
	parts := strings.Split(ports, ":")
	if len(parts) < 2 || len(parts) > 3 || f.Protocol != qemuargs.TCP && f.Protocol != qemuargs.UDP {
		return f, fmt.Errorf("forward %q: want [ADDRESS:]PORT:GUESTPORT[/udp], such as 2222:22", text)
	}
	var err error
	if len(parts) == 3 {
		if f.Address, err = netip.ParseAddr(parts[0]); err != nil || !f.Address.Is4() {
			return f, fmt.Errorf("forward %q: %q is no IPv4 address", text, parts[0])
		}
		parts = parts[1:]
	}
	if f.Port, err = parsePort(parts[0], 0); err == nil {
		f.GuestPort, err = parsePort(parts[1], 1)
	}
	if err != nil {
		return f, fmt.Errorf("forward %q: %w", text, err)
	}
	return f, nil
}

func parsePort(text string, least uint64) (uint16, error) {
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port < least {
		return 0, fmt.Errorf("%q is no port from %d to 65535", text, least)
	}
	return uint16(port), nil
}

// firstUnprivileged is the first port that every user may listen on, by the kernel's default.
const firstUnprivileged = 1024

// claim finds the host's port for a forward. need says that no other port will do.
type claim func(f qemuargs.Forward, need bool) (port uint16, err error)

// forwards returns the forwards of each interface: those that the user wants, to the first
// interface, and those to the ports that the manifest lists. A manifest's port is listened on
// under its own number if the number is free and needs no privilege.
func forwards(vmi *v1.VirtualMachineInstance, wanted []qemuargs.Forward, claim claim) (map[string][]qemuargs.Forward, error) {
	out := map[string][]qemuargs.Forward{}
	interfaces := vmi.Spec.Domain.Devices.Interfaces
	if len(wanted) > 0 && len(interfaces) == 0 {
		return nil, errors.New("forward a port: the VM has no network interface")
	}
	type target struct {
		nic      string
		protocol qemuargs.Protocol
		port     uint16
	}
	seen := map[target]bool{}
	add := func(nic string, f qemuargs.Forward, need bool) (err error) {
		if f.Port, err = claim(f, need); err != nil {
			return fmt.Errorf("forward to port %d of the guest: %w", f.GuestPort, err)
		}
		seen[target{nic, f.Protocol, f.GuestPort}] = true
		out[nic] = append(out[nic], f)
		return nil
	}
	for _, f := range wanted {
		if err := add(interfaces[0].Name, f, true); err != nil {
			return nil, err
		}
	}
	for _, nic := range interfaces {
		for _, p := range nic.Ports {
			f := qemuargs.Forward{Protocol: qemuargs.TCP, Address: loopback, GuestPort: uint16(p.Port)}
			if strings.EqualFold(p.Protocol, string(qemuargs.UDP)) {
				f.Protocol = qemuargs.UDP
			}
			if seen[target{nic.Name, f.Protocol, f.GuestPort}] {
				continue
			}
			if f.GuestPort >= firstUnprivileged {
				f.Port = f.GuestPort
			}
			if err := add(nic.Name, f, false); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// ports holds ports of this machine until QEMU listens on them. If another process takes one
// between release and then, QEMU says so and ends.
type ports struct{ held []io.Closer }

func (p *ports) release() {
	for _, socket := range p.held {
		socket.Close()
	}
	p.held = nil
}

// claim is a claim.
func (p *ports) claim(f qemuargs.Forward, need bool) (uint16, error) {
	port, err := p.listen(f)
	if errors.Is(err, unix.EADDRINUSE) && !need {
		f.Port = 0
		port, err = p.listen(f)
	}
	if err != nil {
		return 0, fmt.Errorf("listen on %s port %d of %s: %w", f.Protocol, f.Port, f.Address, err)
	}
	return port, nil
}

// listen listens on a port, or on any for 0, and returns the port.
func (p *ports) listen(f qemuargs.Forward) (uint16, error) {
	address := net.TCPAddrFromAddrPort(netip.AddrPortFrom(f.Address, f.Port))
	if f.Protocol == qemuargs.UDP {
		conn, err := net.ListenUDP("udp4", (*net.UDPAddr)(address))
		if err != nil {
			return 0, err
		}
		p.held = append(p.held, conn)
		return uint16(conn.LocalAddr().(*net.UDPAddr).Port), nil
	}
	listener, err := net.ListenTCP("tcp4", address)
	if err != nil {
		return 0, err
	}
	p.held = append(p.held, listener)
	return uint16(listener.Addr().(*net.TCPAddr).Port), nil
}
