package node

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/go-logr/logr/testr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/control/controltest"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// testNode is a node's Slots and Sessions, and a kubelet that gave device vm1 to pod a.
type testNode struct {
	slots    *Slots
	sessions *Sessions
	changed  chan types.NamespacedName
}

func newNode(t *testing.T) *testNode {
	t.Helper()
	n := &testNode{changed: make(chan types.NamespacedName, 100)}
	n.sessions = NewSessions(testr.New(t), func(pod types.NamespacedName) { n.changed <- pod })
	t.Cleanup(n.sessions.Close)
	pods := &kubelet{held: map[string][]types.NamespacedName{"vm1": {podNamed("a")}, "vm2": {podNamed("a")}}}
	var err error
	if n.slots, err = OpenSlots(t.TempDir(), pods, testr.New(t), n.sessions); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.slots.Close)
	return n
}

// awaitChange waits until something was reported about pod a.
func (n *testNode) awaitChange(t *testing.T) {
	t.Helper()
	select {
	case pod := <-n.changed:
		if pod != podNamed("a") {
			t.Fatalf("change of %v", pod)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("no change was reported")
	}
}

// podNetwork is a network namespace with an eth0, for the test's time.
func podNetwork(t *testing.T) ns.NetNS {
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

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// scripted is a launcher that says what a test wants.
type scripted struct {
	t    *testing.T
	raw  *net.UnixConn
	conn *control.Conn
}

func dialLauncher(t *testing.T, folder string) *scripted {
	t.Helper()
	raw, err := dialSlot(folder)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close() })
	raw.SetReadDeadline(time.Now().Add(10 * time.Second))
	return &scripted{t, raw, control.NewConn(raw)}
}

// send brings files under the name of hello's.
func (s *scripted) send(event string, data any, files ...*os.File) {
	s.t.Helper()
	encoded, err := json.Marshal(data)
	if err != nil {
		s.t.Fatal(err)
	}
	m := control.Message{Event: event, Data: encoded}
	for i, f := range files {
		m.Files = append(m.Files, control.File{Name: control.FileNetNS + strings.Repeat("+", i), File: f})
	}
	if err := s.conn.Send(m); err != nil {
		s.t.Fatal(err)
	}
}

// hangsUp waits until the handler closes the connection.
func (s *scripted) hangsUp() {
	s.t.Helper()
	if m, err := s.conn.Receive(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		s.t.Fatalf("got message %+v, error %v: want the connection closed", m, err)
	}
}

func goodHello() control.Hello {
	return control.Hello{Version: control.Version, Features: control.Features(), QEMUVersion: "7.2.22", State: control.StateReport{State: control.StateWaiting}}
}

// netnsFile is a file of a namespace, as a launcher sends its own.
func netnsFile(t *testing.T, netns ns.NetNS) *os.File {
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

func TestHello(t *testing.T) {
	n := newNode(t)
	launcher := dialLauncher(t, newFolder(t, n.slots, "vm1"))
	if got := n.sessions.Get(podNamed("a")); got != nil {
		t.Fatal("a session before hello")
	}
	launcher.send(control.EventHello, goodHello(), netnsFile(t, podNetwork(t)))
	n.awaitChange(t)
	s := n.sessions.Get(podNamed("a"))
	if s == nil {
		t.Fatal("no session after hello")
	}
	if s.State().State != control.StateWaiting || s.qemuVersion != "7.2.22" || s.links[podLink].MTU != 1450 {
		t.Errorf("state %v, QEMU %q, MTU %d", s.State(), s.qemuVersion, s.links[podLink].MTU)
	}
	if got, err := vouched(s.links[podLink], []string{"fd00::5", "10.244.0.5"}); !reflect.DeepEqual(got, []string{"10.244.0.5", "fd00::5"}) || err != nil {
		t.Errorf("pod addresses %v, %v", got, err)
	}
	launcher.send(control.EventState, control.StateReport{State: control.StatePreparing})
	n.awaitChange(t)
	if got := s.State().State; got != control.StatePreparing {
		t.Errorf("state %v after a report", got)
	}
	launcher.raw.Close()
	<-s.client.Done()
	awaitGone(t, n.sessions)
}

// TestFilesThatCloseSlowly: a launcher that sends a file whose close(2) does not
// return holds up itself, and nobody else.
func TestFilesThatCloseSlowly(t *testing.T) {
	n := newNode(t)
	n.slots.pods.(*kubelet).held["vm3"] = []types.NamespacedName{podNamed("b")}
	hostile := newFolder(t, n.slots, "vm3")
	files := []*os.File{lingering(t), lingering(t)}
	dialLauncher(t, hostile) // says nothing, so that the next is refused, and the last left in the backlog
	for _, f := range files {
		dialLauncher(t, hostile).send("lingers", nil, f)
		(&control.Closer{}).Close(f) // the one on its way is the last, unless it is closed already
	}

	work := make(chan struct{})
	go func() {
		defer close(work)
		for range 40 { // while the second is taken up
			n.sessions.Get(podNamed("a"))
			time.Sleep(25 * time.Millisecond)
		}
		if _, err := n.slots.New("vm3"); err != nil { // the old slot is dropped
			t.Error(err)
		}
		n.sessions.Get(podNamed("a"))
	}()
	select {
	case <-work:
	case <-time.After(20 * time.Second):
		t.Fatal("sessions and slots of others wait for it")
	}
	launcher := dialLauncher(t, newFolder(t, n.slots, "vm1"))
	launcher.send(control.EventHello, goodHello(), netnsFile(t, podNetwork(t)))
	n.awaitChange(t)
}

// lingering is a file whose close(2) does not return.
func lingering(t *testing.T) *os.File {
	t.Helper()
	return os.NewFile(uintptr(controltest.Lingering(t)), "lingers")
}

func awaitGone(t *testing.T, s *Sessions) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); s.Get(podNamed("a")) != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the session outlived its connection")
		}
	}
}

func TestHelloRefused(t *testing.T) {
	pod := podNetwork(t)
	bare, err := ns.TempNetNS()
	if err != nil {
		t.Fatal(err)
	}
	defer bare.Close()
	newer, many := goodHello(), goodHello()
	newer.Version++
	many.Features = make([]string, maxFeatures+1)
	good := func(t *testing.T) []*os.File { return []*os.File{netnsFile(t, pod)} }
	file := func(path string) func(*testing.T) []*os.File {
		return func(t *testing.T) []*os.File { return []*os.File{open(t, path)} }
	}
	tests := []struct {
		name  string
		event string
		data  any
		files func(*testing.T) []*os.File
	}{
		{"newer version", control.EventHello, newer, good},
		{"state before hello", control.EventState, control.StateReport{State: control.StateRunning}, good},
		{"no state", control.EventHello, map[string]any{"version": control.Version, "pod": "another"}, good},
		{"many features", control.EventHello, many, good},
		{"no file", control.EventHello, goodHello(), func(*testing.T) []*os.File { return nil }},
		{"two files", control.EventHello, goodHello(), func(t *testing.T) []*os.File { return append(good(t), good(t)...) }},
		{"a plain file", control.EventHello, goodHello(), file("/etc/hostname")},
		{"a mount namespace", control.EventHello, goodHello(), file("/proc/self/ns/mnt")},
		// Not /proc/self: the main thread may be in another namespace.
		{"the host's own", control.EventHello, goodHello(), file("/proc/thread-self/ns/net")},
		{"a namespace without eth0", control.EventHello, goodHello(), func(t *testing.T) []*os.File { return []*os.File{netnsFile(t, bare)} }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			launcher := dialLauncher(t, newFolder(t, n.slots, "vm1"))
			launcher.send(tt.event, tt.data, tt.files(t)...)
			launcher.hangsUp()
			if n.sessions.Get(podNamed("a")) != nil || len(n.changed) != 0 {
				t.Error("refused, but a session was made known")
			}
		})
	}
}

func TestSecondSlotOfAPodIsRefused(t *testing.T) {
	n, netns := newNode(t), podNetwork(t)
	first := dialLauncher(t, newFolder(t, n.slots, "vm1"))
	first.send(control.EventHello, goodHello(), netnsFile(t, netns))
	n.awaitChange(t)
	known := n.sessions.Get(podNamed("a"))
	second := dialLauncher(t, newFolder(t, n.slots, "vm2"))
	second.send(control.EventHello, goodHello(), netnsFile(t, netns))
	second.hangsUp()
	if n.sessions.Get(podNamed("a")) != known {
		t.Error("the first session was displaced")
	}
}

func TestReconnectReplaces(t *testing.T) {
	n, netns := newNode(t), podNetwork(t)
	folder := newFolder(t, n.slots, "vm1")
	first := dialLauncher(t, folder)
	first.send(control.EventHello, goodHello(), netnsFile(t, netns))
	n.awaitChange(t)
	old := n.sessions.Get(podNamed("a"))
	hello := goodHello()
	hello.State.State = control.StateRunning
	second := dialLauncher(t, folder)
	second.send(control.EventHello, hello, netnsFile(t, netns))
	n.awaitChange(t)
	first.hangsUp()
	<-old.client.Done()
	now := n.sessions.Get(podNamed("a"))
	if now == nil || now == old || now.State().State != control.StateRunning {
		t.Fatalf("session %+v, want the second connection's", now)
	}
	// The old connection's end must not take the new session along.
	second.send(control.EventState, control.StateReport{State: control.StatePaused})
	n.awaitChange(t)
	if n.sessions.Get(podNamed("a")) != now {
		t.Error("the new session is gone")
	}
}

func TestSessionCall(t *testing.T) {
	n := newNode(t)
	launcher := dialLauncher(t, newFolder(t, n.slots, "vm1"))
	launcher.send(control.EventHello, goodHello(), netnsFile(t, podNetwork(t)))
	n.awaitChange(t)
	s := n.sessions.Get(podNamed("a"))
	called := make(chan error, 1)
	var state control.StateReport
	go func() { called <- s.call(context.Background(), control.CommandQueryState, nil, &state) }()
	m, err := launcher.conn.Receive()
	if err != nil || m.Execute != control.CommandQueryState {
		t.Fatalf("got %+v, %v", m, err)
	}
	if err := launcher.conn.Send(control.Message{ID: m.ID, Return: []byte(`{"state":"running"}`)}); err != nil {
		t.Fatal(err)
	}
	if err := <-called; err != nil || state.State != control.StateRunning {
		t.Errorf("state %+v, error %v", state, err)
	}
	go func() { called <- s.call(context.Background(), control.CommandShutdown, nil, nil) }()
	if _, err := launcher.conn.Receive(); err != nil {
		t.Fatal(err)
	}
	launcher.raw.Close()
	if err := <-called; !errors.Is(err, control.ErrClosed) || !errors.Is(err, io.EOF) {
		t.Errorf("call on a launcher that went away: %v", err)
	}
}

// Close must end what is connected, and let nothing in afterwards.
// TestSilentLauncher: one that does not answer is asked once, is silent after a
// while, and until it does answer.
func TestSilentLauncher(t *testing.T) {
	n := newNode(t)
	n.sessions.interval, n.sessions.patience = 50*time.Millisecond, 200*time.Millisecond
	launcher := dialLauncher(t, newFolder(t, n.slots, "vm1"))
	launcher.send(control.EventHello, goodHello(), netnsFile(t, podNetwork(t)))
	n.awaitChange(t)
	s := n.sessions.Get(podNamed("a"))
	question := func() *control.Message {
		t.Helper()
		m, err := launcher.conn.Receive()
		if err != nil || m.Execute != control.CommandQueryState {
			t.Fatalf("got %+v, %v", m, err)
		}
		return m
	}
	answer := func(m *control.Message) {
		t.Helper()
		if err := launcher.conn.Send(control.Message{ID: m.ID, Return: []byte(`{"state":"waiting"}`)}); err != nil {
			t.Fatal(err)
		}
	}
	answer(question())
	if s.Silent() {
		t.Error("silent, though it answered")
	}
	asked := question()
	n.awaitChange(t)
	if !s.Silent() || n.sessions.Get(podNamed("a")) != s {
		t.Error("not silent, or gone, after a question without answer")
	}
	// It lives all the same.
	launcher.send(control.EventState, control.StateReport{State: control.StatePreparing})
	n.awaitChange(t)
	answer(asked)
	n.awaitChange(t)
	if s.Silent() {
		t.Error("silent, though it answered late")
	}
	question()
	n.awaitChange(t)
	launcher.raw.Close()
	awaitGone(t, n.sessions)
}

// TestImplausibleState: a state that would take much memory is not kept.
func TestImplausibleState(t *testing.T) {
	n := newNode(t)
	launcher := dialLauncher(t, newFolder(t, n.slots, "vm1"))
	launcher.send(control.EventHello, goodHello(), netnsFile(t, podNetwork(t)))
	n.awaitChange(t)
	machine := &qemuargs.Machine{Disks: make([]qemuargs.Disk, maxDevices+1)}
	launcher.send(control.EventState, control.StateReport{State: control.StateRunning, Machine: machine})
	launcher.send(control.EventState, control.StateReport{State: control.StatePreparing})
	n.awaitChange(t)
	if got := n.sessions.Get(podNamed("a")).State(); got.State != control.StatePreparing || got.Machine != nil {
		t.Errorf("state %s with a machine of %d disks", got.State, len(got.Machine.Disks))
	}
}

func TestSessionsClose(t *testing.T) {
	n := newNode(t)
	folder := newFolder(t, n.slots, "vm1")
	launcher := dialLauncher(t, folder)
	launcher.send(control.EventHello, goodHello(), netnsFile(t, podNetwork(t)))
	n.awaitChange(t)
	n.sessions.Close()
	launcher.hangsUp()
	dialLauncher(t, folder).hangsUp()
}
