package netsetup

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
)

// unshared is the network namespace that a process of this user gets by itself.
func unshared(t *testing.T, user uint32, arguments ...string) *os.File {
	t.Helper()
	cmd := exec.Command("unshare", append(arguments, "cat")...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}, Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	// cat answers once all namespaces are made.
	if _, err := io.WriteString(in, "!"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		t.Fatalf("user %d cannot make a network namespace: %v", user, err)
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// A namespace that a pod's process made has whatever addresses that process likes.
func TestNetNSOfOthers(t *testing.T) {
	tests := []struct {
		name string
		file *os.File
		want error
	}{
		{"the launcher's user", unshared(t, 107, "-Urn"), ErrForeignNetNS},
		{"root of such a namespace", unshared(t, 107, "-Ur", "unshare", "-Urn"), ErrForeignNetNS},
		{"root of a pod with a user namespace", unshared(t, 0, "-Ur", "unshare", "-Urn"), ErrForeignNetNS},
		{"a pod with a user namespace, by the runtime", unshared(t, 0, "-Urn"), nil},
		{"a pod, by the runtime", unshared(t, 0, "-n"), nil},
	}
	for _, tt := range tests {
		netns, err := FromFile(tt.file)
		if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
		if err == nil {
			netns.Close()
		}
	}
}

// Who fills a namespace does not fill the memory, or the time, of who reads it.
func TestFactsAreBounded(t *testing.T) {
	tests := map[string]struct {
		fill  func(link netlink.Link) error
		count int
	}{
		"addresses": {func(link netlink.Link) error {
			for i := range maxAddresses + 1 {
				if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 1, 0, byte(i+1)), Mask: net.CIDRMask(32, 32)}}); err != nil {
					return err
				}
			}
			return nil
		}, maxAddresses + 1},
		"routes": {func(link netlink.Link) error { return addRoutes(link, 50_000) }, 50_000},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			netns := newNetNS(t)
			err := netns.Do(func(ns.NetNS) error {
				veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "peer"}
				veth.Name = "eth0"
				if err := errors.Join(netlink.LinkAdd(veth), configureLink("eth0", podIP+"/24", podMTU), configureLink("peer", "", podMTU)); err != nil {
					return err
				}
				return tt.fill(veth)
			})
			if err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			facts, err := ReadFacts(netns, "eth0")
			if !errors.Is(err, ErrTooMany) {
				t.Errorf("%d addresses and %d routes are read, error %v, want %v", len(facts.Addresses), len(facts.Routes), err, ErrTooMany)
			}
			t.Logf("%d %s are refused after %v", tt.count, name, time.Since(begin))
		})
	}
}

// TestFactsBesideFlooded: a machine on a network beside the pod's, which sends router advertisements, does
// not keep the network from being read. Before the takeover, IPv6 is not off yet.
func TestFactsBesideFlooded(t *testing.T) {
	netns := newNetNS(t)
	err := netns.Do(func(ns.NetNS) error {
		for link, address := range map[string]string{"eth0": podIP + "/24", besideLink: "192.0.2.10/24"} {
			veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "x" + link[:3]}
			veth.Name = link
			if err := errors.Join(netlink.LinkAdd(veth), configureLink(link, address, podMTU), configureLink(veth.PeerName, "", podMTU)); err != nil {
				return err
			}
		}
		var lines strings.Builder
		for i := range maxRoutes + 44 {
			fmt.Fprintf(&lines, "route add 2001:db8:%x::/64 dev %s\n", i+1, besideLink)
		}
		for i := range maxAddresses + 1 {
			fmt.Fprintf(&lines, "address add 2001:db8::%x/128 dev %s nodad\n", i+1, besideLink)
		}
		cmd := exec.Command("ip", "-6", "-batch", "-")
		cmd.Stdin, cmd.Stderr = strings.NewReader(lines.String()), os.Stderr
		return cmd.Run()
	})
	if err != nil {
		t.Fatal(err)
	}
	facts, err := ReadFacts(netns, besideLink)
	if err != nil || len(facts.Addresses) != 1 || facts.Addresses[0] != netip.MustParsePrefix("192.0.2.10/24") || len(facts.Routes) != 1 {
		t.Errorf("%+v: %v", facts, err)
	}
	if facts, err = ReadFacts(netns, "eth0"); err != nil || len(facts.Addresses) != 1 {
		t.Errorf("the pod's own: %+v: %v", facts, err)
	}
}

// addRoutes adds many routes over a link. It runs in the link's namespace.
func addRoutes(link netlink.Link, count int) error {
	var lines strings.Builder
	for i := range count {
		fmt.Fprintf(&lines, "route add 11.%d.%d.%d/32 dev %s\n", i>>16, i>>8&255, i&255, link.Attrs().Name)
	}
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin, cmd.Stderr = strings.NewReader(lines.String()), os.Stderr
	return cmd.Run()
}
