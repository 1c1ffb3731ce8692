package node

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/kubeqemu/kubeqemu/handlerapi"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// twoNodes are two network namespaces with a link between them: cut takes it down.
func twoNodes(t *testing.T) (here, there ns.NetNS, cut func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root")
	}
	made := func() ns.NetNS {
		netns, err := ns.TempNetNS()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { netns.Close() })
		return netns
	}
	here, there = made(), made()
	up := func(address string) error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		parsed, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		return errors.Join(netlink.AddrAdd(link, parsed), netlink.LinkSetUp(link))
	}
	do := func(netns ns.NetNS, work func() error) {
		t.Helper()
		if err := netns.Do(func(ns.NetNS) error { return work() }); err != nil {
			t.Fatal(err)
		}
	}
	do(here, func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "eth0", PeerNamespace: netlink.NsFd(there.Fd())}
		veth.Name = "eth0"
		return errors.Join(netlink.LinkAdd(veth), up("10.9.0.1/24"))
	})
	do(there, func() error { return up("10.9.0.2/24") })
	return here, there, func() {
		do(there, func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			// No end hears of it: packets are lost.
			return netlink.LinkSetDown(link)
		})
	}
}

// TestPeerGone: where virt-api's node is gone, its streams end here, whether
// anything is on its way to it or not.
func TestPeerGone(t *testing.T) {
	for name, flood := range map[string]bool{"silent": false, "amid a flood": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			here, there, cut := twoNodes(t)
			h := newTestHandler(t, ownServing)
			h.server.patience = 2 * time.Second
			var listener net.Listener
			err := here.Do(func(ns.NetNS) (err error) {
				config := net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 2}}
				listener, err = config.Listen(t.Context(), "tcp", "10.9.0.1:0")
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			go h.server.serve(t.Context(), listener)
			h.target.Address, h.port = "10.9.0.1", listener.Addr().(*net.TCPAddr).Port
			guest, theirs := unixPair(t)
			file, err := theirs.File()
			if err != nil {
				t.Fatal(err)
			}
			theirs.Close()
			h.answers(control.CommandConsole, control.Message{Return: []byte("null"), Files: []*os.File{file}})
			var stream net.Conn
			if err := there.Do(func(ns.NetNS) (err error) {
				stream, err = h.api().Stream(t.Context(), h.target, handlerapi.Console, nil)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { stream.Close() })
			// What is not acknowledged yet is sent again for long: TCP's keepalive is for
			// connections that are idle.
			time.Sleep(500 * time.Millisecond)
			cut()
			begin := time.Now()
			if err := guest.SetDeadline(begin.Add(30 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if flood {
				for chunk := make([]byte, 64<<10); err == nil; _, err = guest.Write(chunk) {
				}
			} else {
				_, err = guest.Read(make([]byte, 1))
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the stream is still there")
			}
			t.Logf("found out after %s: %v", time.Since(begin), err)
		})
	}
}
