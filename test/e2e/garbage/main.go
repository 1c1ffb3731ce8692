// Command garbage does in a guest what no driver does, for the end-to-end tests,
// and looks on the node what of it has come there.
//
//	garbage virtio SECONDS PCI-DEVICE...       writes junk into devices' registers and rings
//	garbage network SECONDS LINK VICTIM        floods the network, in the names of others
//	garbage listen SECONDS LINK ADDRESS        counts what comes over a link that is not the address's
//	garbage flood SECONDS LINK ADDRESS WAY     floods in one way: arp, dhcp, nd, macs, or udp to the address
//	garbage spin SECONDS                       keeps the CPUs busy, and sends nothing
//	garbage latency SECONDS ADDRESS PORT       measures the round trips to an echo server
package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "garbage:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("want a command and its arguments, got %q", args)
	}
	seconds, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	until := time.Now().Add(time.Duration(seconds) * time.Second)
	switch {
	case args[0] == "virtio":
		return virtio(args[2:], until)
	case args[0] == "spin":
		return spin(until)
	case args[0] == "latency" && len(args) == 4:
		server, err := netip.ParseAddrPort(net.JoinHostPort(args[2], args[3]))
		if err != nil {
			return err
		}
		return latency(server, until)
	case args[0] == "flood" && len(args) == 5:
		receiver, err := netip.ParseAddr(args[3])
		if err != nil {
			return err
		}
		return sendMany(args[4], args[2], receiver, until)
	case len(args) != 4:
		return fmt.Errorf("want a link and an address, got %q", args[2:])
	}
	address, err := netip.ParseAddr(args[3])
	if err != nil {
		return err
	}
	switch args[0] {
	case "network":
		return flood(args[2], address, until)
	case "listen":
		return listen(args[2], address, until)
	}
	return fmt.Errorf("there is no command %q", args[0])
}
