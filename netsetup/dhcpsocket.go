package netsetup

import (
	"fmt"
	"os"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// ListenDHCP opens a UDP socket on port 67 (RFC 2131) that sees only the plan's bridge, i.e.
// only the guest, and may send broadcasts. It is for the launcher, which may not open such a
// socket itself. Apply must have run, and the plan Serves.
func ListenDHCP(netns ns.NetNS, plan *Plan) (*os.File, error) {
	var f *os.File
	err := netns.Do(func(ns.NetNS) (err error) {
		f, err = listenUDP(plan.Bridge.Name, dhcpPort)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen for DHCP on %q: %w", plan.Bridge.Name, err)
	}
	return f, nil
}

func listenUDP(device string, port int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
	if err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), "dhcp:"+device)
	for _, set := range []struct {
		name string
		call func() error
	}{
		{"bind to device", func() error { return unix.BindToDevice(fd, device) }},
		{"allow broadcast", func() error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1) }},
		// The launcher may still hold the socket of an attempt that a crash cut
		// short; the kernel gives a datagram to the socket bound last.
		{"allow reuse", func() error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }},
		// The any-address: a socket bound to the gateway's address would get no broadcasts.
		{"bind", func() error { return unix.Bind(fd, &unix.SockaddrInet4{Port: port}) }},
	} {
		if err := set.call(); err != nil {
			f.Close()
			return nil, fmt.Errorf("%s: %w", set.name, err)
		}
	}
	return f, nil
}
