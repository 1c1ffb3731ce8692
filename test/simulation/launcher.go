package simulation

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// launcher is one that starts no QEMU: it answers virt-handler as if its guest
// ran. Its network namespace is real, and what virt-handler does there too.
type launcher struct {
	socket string
	netns  ns.NetNS
	ended  chan struct{}
	wait   sync.WaitGroup

	mu   sync.Mutex
	conn *net.UnixConn

	state control.StateReport
}

// startLauncher makes a pod's network, and dials the slot.
func startLauncher(socket, address string) (*launcher, error) {
	netns, err := podNetwork(address)
	if err != nil {
		return nil, err
	}
	l := &launcher{socket: socket, netns: netns, ended: make(chan struct{}), state: control.StateReport{State: control.StateWaiting}}
	l.wait.Go(func() {
		for {
			l.serve()
			select {
			case <-l.ended:
				return
			case <-time.After(100 * time.Millisecond): // a real one waits for two seconds
			}
		}
	})
	return l, nil
}

// podNetwork is a new network namespace with what a CNI plugin leaves in one.
func podNetwork(address string) (ns.NetNS, error) {
	netns, err := ns.TempNetNS()
	if err != nil {
		return nil, fmt.Errorf("make a pod's network namespace (run this test as root): %w", err)
	}
	err = netns.Do(func(ns.NetNS) error {
		eth0 := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "peer"}
		eth0.Name, eth0.MTU = "eth0", 1450
		if err := netlink.LinkAdd(eth0); err != nil {
			return err
		}
		ip, err := netlink.ParseAddr(address + "/16")
		if err == nil {
			err = netlink.AddrAdd(eth0, ip)
		}
		if err == nil {
			err = netlink.LinkSetUp(eth0)
		}
		return err
	})
	if err != nil {
		netns.Close()
		return nil, err
	}
	return netns, nil
}

// end ends the launcher, as SIGKILL would: the pod's namespace goes with it.
func (l *launcher) end() {
	l.mu.Lock()
	select {
	case <-l.ended:
	default:
		close(l.ended)
	}
	if l.conn != nil {
		l.conn.Close()
	}
	l.mu.Unlock()
	l.wait.Wait()
	l.netns.Close()
}

// dial returns nil if the slot does not answer, or the launcher has ended.
func (l *launcher) dial() *net.UnixConn {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: l.socket, Net: "unix"})
	if err != nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.ended:
		conn.Close()
		return nil
	default:
		l.conn = conn
		return conn
	}
}

// serve says hello and answers, until the connection ends.
func (l *launcher) serve() {
	raw := l.dial()
	if raw == nil {
		return
	}
	defer raw.Close()
	conn := control.NewConn(raw)
	fd, err := unix.FcntlInt(l.netns.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return
	}
	file := os.NewFile(uintptr(fd), "netns")
	err = tell(conn, control.EventHello, control.Hello{Version: control.Version, Knows: control.CommandsDigest(), QEMUVersion: "7.2.22", State: l.state},
		control.File{Name: control.FileNetNS, File: file})
	file.Close()
	for err == nil {
		var m *control.Message
		if m, err = conn.Receive(); err == nil {
			err = l.answer(conn, m)
			m.Close()
		}
	}
}

func tell(conn *control.Conn, event string, data any, files ...control.File) error {
	encoded, err := json.Marshal(data)
	if err != nil {
		return err
	}
	return conn.Send(control.Message{Event: event, Data: encoded, Files: files})
}

func (l *launcher) answer(conn *control.Conn, m *control.Message) error {
	reply := any(struct{}{})
	switch m.Execute {
	case control.CommandInspect:
		var request control.InspectRequest
		if err := json.Unmarshal(m.Data, &request); err != nil {
			return err
		}
		facts := control.InspectReply{}
		for range request.ContainerDisks {
			facts.ContainerDisks = append(facts.ContainerDisks, qemuargs.ImageFacts{Path: "/disk.qcow2", Format: qemuargs.QCOW2, VirtualSize: 1 << 30})
		}
		reply = facts
	case control.CommandQueryState:
		reply = l.state
	case control.CommandStart:
		var request control.StartRequest
		if err := json.Unmarshal(m.Data, &request); err != nil {
			return err
		}
		now := time.Now()
		l.state = control.StateReport{State: control.StateRunning, Machine: &request.Machine, StartedAt: &now, QEMUPID: 7}
		for _, state := range []control.StateReport{{State: control.StatePreparing}, l.state} {
			if err := tell(conn, control.EventState, state); err != nil {
				return err
			}
		}
	}
	encoded, err := json.Marshal(reply)
	if err != nil {
		return err
	}
	return conn.Send(control.Message{ID: m.ID, Return: encoded})
}
