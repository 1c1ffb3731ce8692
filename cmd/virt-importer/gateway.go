package main

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
)

// Where the kernel shows the routes of the pod's network namespace (proc_pid_net(5)).
const (
	routes4 = "/proc/net/route"
	routes6 = "/proc/net/ipv6_route"
)

// gateways are the gateways of the pod's routes. With most network plugins a gateway is an address of the pod's
// node, such as its bridge's, which status.hostIPs does not have.
func gateways() ([]netip.Addr, error) {
	text4, err := os.ReadFile(routes4)
	if err != nil {
		return nil, fmt.Errorf("read the pod's routes: %w", err)
	}
	text6, err := os.ReadFile(routes6)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
		return nil, fmt.Errorf("read the pod's routes: %w", err)
	}
	all, err := parseRoutes4(string(text4))
	if err != nil {
		return nil, err
	}
	more, err := parseRoutes6(string(text6))
	return append(all, more...), err
}

// parseRoutes4 reads /proc/net/route: a line of titles, then a route a line. The third field is the gateway, a
// number of 32 bits in the machine's byte order, in hexadecimal; 0 is none.
func parseRoutes4(text string) (all []netip.Addr, err error) {
	_, routes, _ := strings.Cut(text, "\n")
	for line := range strings.Lines(routes) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			return nil, fmt.Errorf("read the pod's routes: %q is none", line)
		}
		raw, err := hex.DecodeString(fields[2])
		if err != nil || len(raw) != 4 {
			return nil, fmt.Errorf("read the pod's routes: %q is no gateway", fields[2])
		}
		var address [4]byte
		binary.NativeEndian.PutUint32(address[:], binary.BigEndian.Uint32(raw))
		if gateway := netip.AddrFrom4(address); !gateway.IsUnspecified() {
			all = append(all, gateway)
		}
	}
	return all, nil
}

// parseRoutes6 reads /proc/net/ipv6_route: a route a line. The fifth field is the gateway, 16 bytes in
// hexadecimal; 0 is none.
func parseRoutes6(text string) (all []netip.Addr, err error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			return nil, fmt.Errorf("read the pod's routes: %q is none", line)
		}
		raw, err := hex.DecodeString(fields[4])
		if err != nil || len(raw) != 16 {
			return nil, fmt.Errorf("read the pod's routes: %q is no gateway", fields[4])
		}
		if gateway := netip.AddrFrom16([16]byte(raw)); !gateway.IsUnspecified() {
			all = append(all, gateway)
		}
	}
	return all, nil
}
