package serve

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// twoNodes returns two network namespaces with a link between them: lose takes down the end of the node that is lost.
func twoNodes(t *testing.T) (here, there ns.NetNS, lose func(ns.NetNS)) {
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
	return here, there, func(node ns.NetNS) {
		do(node, func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			// The other end does not hear of it: packets are lost.
			return netlink.LinkSetDown(link)
		})
	}
}

// between returns a stream from a guest to virt-api on another node. The node of either can be lost.
func (h *testHandler) between(t *testing.T) (guest, stream net.Conn, loseAPI, loseHandler func()) {
	t.Helper()
	here, there, lose := twoNodes(t)
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
	guest, theirs := testkit.SocketPair(t)
	file, err := theirs.File()
	if err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	h.answers(control.CommandConsole, control.Message{Return: []byte("null"), Files: []control.File{{File: file}}})
	api := h.api()
	api.GoneAfter = 2 * time.Second
	if err := there.Do(func(ns.NetNS) (err error) {
		stream, err = api.Stream(t.Context(), h.target, handlerapi.Console, nil)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stream.Close() })
	return guest, stream, func() { lose(there) }, func() { lose(here) }
}

// TestStreamEndsIfHandlersNodeIsGone: where virt-handler's node is gone amid a word to it, its stream
// ends at virt-api.
func TestStreamEndsIfHandlersNodeIsGone(t *testing.T) {
	t.Parallel()
	_, stream, _, lose := newTestHandler(t, ownServing).between(t)
	lose()
	if err := stream.SetDeadline(time.Now().Add(testkit.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the stream is still there: %v", err)
	}
}

// TestStreamsEndIfAPIsNodeIsGone: where virt-api's node is gone, its streams end here, whether
// anything is on its way to it or not. One that lives and takes nothing has time.
func TestStreamsEndIfAPIsNodeIsGone(t *testing.T) {
	for name, test := range map[string]struct {
		gone   bool
		size   int // of each write, in bytes
		writes int
	}{
		"silent":       {gone: true},
		"amid a word":  {gone: true, size: 1, writes: 1},
		"amid a flood": {gone: true, size: 64 << 10, writes: 10000},
		"slow":         {size: 64 << 10, writes: 10000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTestHandler(t, ownServing)
			h.server.patience, h.server.goneAfter = 2*time.Second, 2*time.Second
			if !test.gone {
				h.server.patience, h.server.goneAfter = time.Hour, time.Second
			}
			guest, _, lose, _ := h.between(t)
			// What is not acknowledged yet is sent again for long: TCP's keepalive is for
			// connections that are idle.
			time.Sleep(500 * time.Millisecond)
			limit := 4 * time.Second // the kernel tells the two nodes of each other, and no process of the machine has to run for it
			if test.gone {
				lose()
				limit = testkit.Patience
			}
			begin := time.Now()
			err := guest.SetDeadline(begin.Add(limit))
			for range test.writes {
				if err == nil {
					_, err = guest.Write(make([]byte, test.size))
				}
			}
			if err == nil {
				_, err = guest.Read(make([]byte, 1))
			}
			if still := errors.Is(err, os.ErrDeadlineExceeded); still == test.gone {
				t.Errorf("the stream is still there: %t", still)
			}
			t.Logf("found out after %s: %v", time.Since(begin), err)
		})
	}
}
