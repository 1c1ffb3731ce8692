package nodetest

import (
	"os"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// PodNetwork makes a network namespace with an eth0 that has 10.244.0.5, fd00::5 and an MTU of 1450, for the test's
// time.
func PodNetwork(t *testing.T) ns.NetNS {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root")
	}
	netns, err := ns.TempNetNS()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netns.Close() })
	err = netns.Do(func(ns.NetNS) error {
		eth0 := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "peer"}
		eth0.Name, eth0.MTU = "eth0", 1450
		if err := netlink.LinkAdd(eth0); err != nil {
			return err
		}
		for _, a := range []string{"10.244.0.5/24", "fd00::5/64"} {
			address, err := netlink.ParseAddr(a)
			if err != nil {
				return err
			}
			if err := netlink.AddrAdd(eth0, address); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return netns
}

// NetNSFile returns a file of a namespace, as a launcher sends its own.
func NetNSFile(t *testing.T, netns ns.NetNS) *os.File {
	t.Helper()
	// Not by its path: that is of the thread that made it.
	fd, err := unix.FcntlInt(netns.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "netns")
	t.Cleanup(func() { f.Close() })
	return f
}
