package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/go-logr/logr/testr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// node is a Set, and the line to it.
type node struct {
	*nodetest.Line
	set *Set
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{Line: nodetest.NewLine()}
	n.set = NewSet(testr.New(t), n.Changed)
	n.Set = n.set
	t.Cleanup(n.set.Close)
	return n
}

func TestHelloBeginsASession(t *testing.T) {
	n := newNode(t)
	launcher := n.Dial(t, "vm1")
	if got := n.set.Get(nodetest.Pod("a")); got != nil {
		t.Fatal("a session before hello")
	}
	launcher.Send(control.EventHello, nodetest.Hello(), nodetest.NetNSFile(t, nodetest.PodNetwork(t)))
	n.Await(t)
	s := n.set.Get(nodetest.Pod("a"))
	if s == nil {
		t.Fatal("no session after hello")
	}
	link, err := s.Link(v1.PodLink)
	if got := fmt.Sprint(link.Addresses); err != nil || !strings.Contains(got, "10.244.0.5/24") || !strings.Contains(got, "fd00::5/64") {
		t.Errorf("the pod's addresses are %s", got)
	}
	if s.State().State != control.StateWaiting || s.QEMUVersion != "7.2.22" || link.MTU != 1450 {
		t.Errorf("state %v, QEMU %q, MTU %d", s.State(), s.QEMUVersion, link.MTU)
	}
	launcher.Send(control.EventState, control.StateReport{State: control.StatePreparing})
	n.Await(t)
	if got := s.State().State; got != control.StatePreparing {
		t.Errorf("state %v after a report", got)
	}
	launcher.Raw.Close()
	<-s.Client.Done()
	awaitGone(t, n.set)
}

func awaitGone(t *testing.T, s *Set) {
	t.Helper()
	testkit.Until(t, "the end of the session, which is its connection's", func() bool { return s.Get(nodetest.Pod("a")) == nil })
}

func TestHelloRefused(t *testing.T) {
	pod := nodetest.PodNetwork(t)
	bare, err := ns.TempNetNS()
	if err != nil {
		t.Fatal(err)
	}
	defer bare.Close()
	newer := nodetest.Hello()
	newer.Version++
	good := func(t *testing.T) []*os.File { return []*os.File{nodetest.NetNSFile(t, pod)} }
	file := func(path string) func(*testing.T) []*os.File {
		return func(t *testing.T) []*os.File { return []*os.File{nodetest.Open(t, path)} }
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
		{"no file", control.EventHello, nodetest.Hello(), func(*testing.T) []*os.File { return nil }},
		{"two files", control.EventHello, nodetest.Hello(), func(t *testing.T) []*os.File { return append(good(t), good(t)...) }},
		{"a plain file", control.EventHello, nodetest.Hello(), file("/etc/hostname")},
		{"a mount namespace", control.EventHello, nodetest.Hello(), file("/proc/self/ns/mnt")},
		// Not /proc/self: the main thread may be in another namespace.
		{"the host's own", control.EventHello, nodetest.Hello(), file("/proc/thread-self/ns/net")},
		{"a namespace without eth0", control.EventHello, nodetest.Hello(), func(t *testing.T) []*os.File { return []*os.File{nodetest.NetNSFile(t, bare)} }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			launcher := n.Dial(t, "vm1")
			launcher.Send(tt.event, tt.data, tt.files(t)...)
			launcher.HangsUp()
			if n.set.Get(nodetest.Pod("a")) != nil || n.Changes() != 0 {
				t.Error("refused, but a session was made known")
			}
		})
	}
}

func TestSecondSlotOfAPodIsRefused(t *testing.T) {
	n, netns := newNode(t), nodetest.PodNetwork(t)
	n.Greet(t, "vm1", nodetest.Hello(), netns)
	known := n.set.Get(nodetest.Pod("a"))
	second := n.Dial(t, "vm2")
	second.Send(control.EventHello, nodetest.Hello(), nodetest.NetNSFile(t, netns))
	second.HangsUp()
	if n.set.Get(nodetest.Pod("a")) != known {
		t.Error("the first session was displaced")
	}
}

func TestReconnectReplacesTheSession(t *testing.T) {
	n, netns := newNode(t), nodetest.PodNetwork(t)
	first := n.Greet(t, "vm1", nodetest.Hello(), netns)
	old := n.set.Get(nodetest.Pod("a"))
	hello := nodetest.Hello()
	hello.State.State = control.StateRunning
	second := n.Greet(t, "vm1", hello, netns)
	first.HangsUp()
	<-old.Client.Done()
	now := n.set.Get(nodetest.Pod("a"))
	if now == nil || now == old || now.State().State != control.StateRunning {
		t.Fatalf("session %+v, want the second connection's", now)
	}
	// The old connection's end must not take the new session along.
	second.Send(control.EventState, control.StateReport{State: control.StatePaused})
	n.Await(t)
	if n.set.Get(nodetest.Pod("a")) != now {
		t.Error("the new session is gone")
	}
}

func TestSessionCallsItsLauncher(t *testing.T) {
	n := newNode(t)
	launcher := n.Greet(t, "vm1", nodetest.Hello(), nodetest.PodNetwork(t))
	s := n.set.Get(nodetest.Pod("a"))
	called := make(chan error, 1)
	var state control.StateReport
	go func() { called <- s.Call(context.Background(), control.CommandQueryState, nil, &state) }()
	m, err := launcher.Conn.Receive()
	if err != nil || m.Execute != control.CommandQueryState {
		t.Fatalf("got %+v, %v", m, err)
	}
	if err := launcher.Conn.Send(control.Message{ID: m.ID, Return: []byte(`{"state":"running"}`)}); err != nil {
		t.Fatal(err)
	}
	if err := <-called; err != nil || state.State != control.StateRunning {
		t.Errorf("state %+v, error %v", state, err)
	}
	go func() { called <- s.Call(context.Background(), control.CommandShutdown, nil, nil) }()
	if _, err := launcher.Conn.Receive(); err != nil {
		t.Fatal(err)
	}
	launcher.Raw.Close()
	if err := <-called; !errors.Is(err, control.ErrClosed) || !errors.Is(err, io.EOF) {
		t.Errorf("call on a launcher that went away: %v", err)
	}
}

// TestSilentLauncherIsAskedOnce: one that does not answer is asked once, is silent after a while, and until it does
// answer.
func TestSilentLauncherIsAskedOnce(t *testing.T) {
	testkit.Slower(t, 200*time.Millisecond, func(patience time.Duration) error { return silentLauncher(t, patience) })
}

// silentLauncher returns an error if the launcher counts as silent when it should not, as it does without CPU.
func silentLauncher(t *testing.T, patience time.Duration) error {
	t.Helper()
	n := newNode(t)
	n.set.interval, n.set.patience = patience/4, patience
	launcher := n.Greet(t, "vm1", nodetest.Hello(), nodetest.PodNetwork(t))
	s := n.set.Get(nodetest.Pod("a"))
	question := func() *control.Message {
		t.Helper()
		m, err := launcher.Conn.Receive()
		if err != nil || m.Execute != control.CommandQueryState {
			t.Fatalf("got %+v, %v", m, err)
		}
		return m
	}
	answer := func(m *control.Message) {
		t.Helper()
		if err := launcher.Conn.Send(control.Message{ID: m.ID, Return: []byte(`{"state":"waiting"}`)}); err != nil {
			t.Fatal(err)
		}
	}
	answer(question())
	if s.Silent() {
		return errors.New("silent, though it answered")
	}
	asked := question()
	n.Await(t)
	if !s.Silent() || n.set.Get(nodetest.Pod("a")) != s {
		return errors.New("not silent, or gone, after a question without answer")
	}
	// It lives all the same.
	launcher.Send(control.EventState, control.StateReport{State: control.StatePreparing})
	n.Await(t)
	answer(asked)
	n.Await(t)
	if s.Silent() {
		return errors.New("silent, though it answered late")
	}
	question()
	n.Await(t)
	launcher.Raw.Close()
	awaitGone(t, n.set)
	return nil
}

// TestImplausibleStateIsNotKept: a state that would take much memory is not kept.
func TestImplausibleStateIsNotKept(t *testing.T) {
	n := newNode(t)
	launcher := n.Greet(t, "vm1", nodetest.Hello(), nodetest.PodNetwork(t))
	machine := &qemuargs.Machine{Disks: make([]qemuargs.Disk, maxDevices+1)}
	launcher.Send(control.EventState, control.StateReport{State: control.StateRunning, Machine: machine})
	launcher.Send(control.EventState, control.StateReport{State: control.StatePreparing})
	n.Await(t)
	if got := n.set.Get(nodetest.Pod("a")).State(); got.State != control.StatePreparing || got.Machine != nil {
		t.Errorf("state %s with a machine of %d disks", got.State, len(got.Machine.Disks))
	}
}

func TestSessionsClose(t *testing.T) {
	n := newNode(t)
	launcher := n.Greet(t, "vm1", nodetest.Hello(), nodetest.PodNetwork(t))
	n.set.Close()
	launcher.HangsUp()
	n.Dial(t, "vm1").HangsUp()
}

// TestAgentFlood: a launcher that tells of its guest's agent without end is
// believed in the newest, costs a few writes of a status, and its answers do not
// wait.
func TestAgentFlood(t *testing.T) {
	n := newNode(t)
	n.set.agentInterval = time.Hour
	launcher := n.Greet(t, "vm1", nodetest.Hello(), nodetest.PodNetwork(t))
	s := n.set.Get(nodetest.Pod("a"))
	launcher.Send(control.EventAgent, control.AgentReport{Connected: true, Version: "first"})
	n.Await(t)
	if got := s.Agent(); got == nil || got.Version != "first" {
		t.Fatalf("the first report: %+v", got)
	}
	for i := range 10 * eventBurst {
		launcher.Send(control.EventAgent, control.AgentReport{Connected: true, Version: fmt.Sprint(i)})
	}
	called := make(chan error, 1)
	go func() { called <- s.Call(t.Context(), control.CommandQueryState, nil, nil) }()
	m, err := launcher.Conn.Receive()
	if err != nil {
		t.Fatal(err)
	}
	if err := launcher.Conn.Send(control.Message{ID: m.ID, Return: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	if err := testkit.Receive(t, called, "an answer, which waits for no reports before it"); err != nil {
		t.Error(err)
	}
	if told := n.Changes(); told != 0 || s.Agent().Version != "first" {
		t.Errorf("told of %d reports within the interval; the last is %+v", told, s.Agent())
	}
	if !s.takeAgent() || s.Agent().Version != fmt.Sprint(10*eventBurst-1) {
		t.Errorf("the newest report is not kept: %+v", s.Agent())
	}
}

// TestAgentReportIsToldAfterTheInterval: what came within the interval is told of after it.
func TestAgentReportIsToldAfterTheInterval(t *testing.T) {
	n := newNode(t)
	n.set.agentInterval = time.Millisecond
	launcher := n.Greet(t, "vm1", nodetest.Hello(), nodetest.PodNetwork(t))
	for i := range 3 {
		launcher.Send(control.EventAgent, control.AgentReport{Connected: true, Version: fmt.Sprint(i)})
		n.Await(t)
		if got := n.set.Get(nodetest.Pod("a")).Agent().Version; got != fmt.Sprint(i) {
			t.Errorf("report %d: %q", i, got)
		}
	}
}

// TestJobsOfALauncherAreBounded: no launcher has more than it may list.
func TestJobsOfALauncherAreBounded(t *testing.T) {
	for n, want := range map[int]bool{control.MaxJobs: true, control.MaxJobs + 1: false} {
		if got := Plausible(control.StateReport{State: control.StateRunning, Jobs: make([]control.Job, n)}); got != want {
			t.Errorf("a state with %d jobs: plausible %t", n, got)
		}
	}
}

// TestLauncherIsNotAskedForWhatItDoesNotKnow: who wants it is told so by the command's name, and by those of the
// fields.
func TestLauncherIsNotAskedForWhatItDoesNotKnow(t *testing.T) {
	s := &Session{Commands: control.Commands{control.CommandConsole: nil, control.CommandReject: {"reason"}}}
	for command, c := range map[string]struct {
		arguments any
		says      string
	}{
		control.CommandPause:  {nil, `does not know the command "pause"`},
		control.CommandBecome: {control.BecomeRequest{}, `does not know the command "become"`},
		control.CommandReject: {control.Termination{Reason: "a", Message: "b"},
			`does not know "message" in the command "reject"`},
	} {
		if err := s.Call(t.Context(), command, c.arguments, nil); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", command, err)
		}
		if _, err := s.Stream(t.Context(), command, c.arguments); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s, for a stream: %v", command, err)
		}
	}
	for command, arguments := range map[string]any{control.CommandConsole: nil,
		control.CommandReject: control.Termination{Reason: "a"}} {
		if err := s.Takes(command, arguments); err != nil {
			t.Errorf("%s: %v", command, err)
		}
	}
}

// TestHelloWithOthersNetNS: a launcher that hands over a namespace of its own making is not let in.
func TestHelloWithOthersNetNS(t *testing.T) {
	n := newNode(t)
	// With all that a pod's has.
	cmd := exec.Command("unshare", "-Urn", "sh", "-ec", "ip link add eth0 type veth peer name other; ip address add 10.244.0.5/24 dev eth0; exec cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 107, Gid: 107}, Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	if _, err := in.Write([]byte("!")); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatalf("make a network namespace as the launcher's user: %v", err)
	}
	for name, path := range map[string]string{"its own": filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "ns/net"), "the host's": "/proc/thread-self/ns/net"} {
		// By a slot of its own: the Set may still close what came by the last.
		launcher := n.Dial(t, name)
		launcher.Send(control.EventHello, nodetest.Hello(), nodetest.Open(t, path))
		launcher.HangsUp()
		if n.set.Get(nodetest.Pod("a")) != nil {
			t.Errorf("%s: it is let in", name)
		}
	}
	n.Greet(t, "vm1", nodetest.Hello(), nodetest.PodNetwork(t))
}

// TestMachineWithTooManyCPUFeatures: a Machine has no more CPU features than any VM has.
func TestMachineWithTooManyCPUFeatures(t *testing.T) {
	for n, want := range map[int]bool{maxDevices: true, maxDevices + 1: false} {
		for name, cpu := range map[string]qemuargs.CPU{"flags": {Flags: make([]string, n)}, "required features": {Required: make([]string, n)}} {
			if got := Plausible(control.StateReport{State: control.StateRunning, Machine: &qemuargs.Machine{CPU: cpu}}); got != want {
				t.Errorf("%d %s: %v", n, name, got)
			}
		}
	}
}

// TestStatsBounded: statistics of more devices than any VM has are none.
func TestStatsBounded(t *testing.T) {
	for _, list := range []string{"vcpus", "disks", "nics"} {
		for n, taken := range map[int]bool{maxDevices: true, maxDevices + 1: false} {
			var answer statsAnswer
			text := `{"` + list + `":[` + strings.TrimSuffix(strings.Repeat("{},", n), ",") + `]}`
			if err := json.Unmarshal([]byte(text), &answer); (err == nil) != taken {
				t.Errorf("%d %s: %v", n, list, err)
			}
		}
	}
}

// TestAgentReportTooLong: what is longer than any report is not even kept.
func TestAgentReportTooLong(t *testing.T) {
	s := &Session{Client: &control.Client{}, agentNews: make(chan struct{}, 1)}
	s.keepAgent(json.RawMessage(`{"version": "` + strings.Repeat("x", control.MaxAgentReport) + `"}`))
	if s.agentSaid != nil || s.takeAgent() {
		t.Errorf("%d bytes are kept", len(s.agentSaid))
	}
}

// TestLauncherThatKnowsTooLittleIsNotLetIn: nobody could tell it anything.
func TestLauncherThatKnowsTooLittleIsNotLetIn(t *testing.T) {
	launcher := newNode(t).Dial(t, "vm1")
	launcher.Knows(control.Commands{control.CommandInspect: nil}, nodetest.NetNSFile(t, nodetest.PodNetwork(t)))
	launcher.HangsUp()
}

// TestLauncherOfAnotherVersionIsLetIn: what it knows of this version's commands counts.
func TestLauncherOfAnotherVersionIsLetIn(t *testing.T) {
	n := newNode(t)
	launcher := n.Dial(t, "vm1")
	fewer := maps.Clone(control.KnownCommands())
	delete(fewer, control.CommandVNC)
	fewer["teleport"] = nil
	launcher.Knows(fewer, nodetest.NetNSFile(t, nodetest.PodNetwork(t)))
	n.Await(t)
	s := n.set.Get(nodetest.Pod("a"))
	var lacks LackingError
	if err := s.Takes(control.CommandVNC, nil); !errors.As(err, &lacks) || s.Takes(control.CommandConsole, nil) != nil {
		t.Errorf("it takes %q: %v", slices.Sorted(maps.Keys(s.Commands)), err)
	}
	if _, ok := s.Commands["teleport"]; ok {
		t.Error("a command that this version does not know is kept")
	}
}

// TestLauncherThatDoesNotSayWhatItKnowsHoldsUpNoEnd: virt-handler ends without its answer.
func TestLauncherThatDoesNotSayWhatItKnowsHoldsUpNoEnd(t *testing.T) {
	n := newNode(t)
	launcher := n.Dial(t, "vm1")
	hello := nodetest.Hello()
	hello.Knows = "something else"
	launcher.Send(control.EventHello, hello, nodetest.NetNSFile(t, nodetest.PodNetwork(t)))
	if m, err := launcher.Conn.Receive(); err != nil || m.Execute != control.CommandQueryCommands {
		t.Fatalf("%+v, %v", m, err)
	}
	asked := time.Now()
	n.set.Close()
	if took := time.Since(asked); took >= helloTimeout {
		t.Errorf("the end took %s", took)
	}
}
