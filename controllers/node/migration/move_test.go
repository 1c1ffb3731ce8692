package migration_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/go-logr/logr/testr"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocks "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node"
	"github.com/kubeqemu/kubeqemu/controllers/node/migration"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/controllers/node/peers"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/controllers/node/start"
	"github.com/kubeqemu/kubeqemu/controllers/node/wiring"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// moving is a guest that is to move from the node here to the node there. The virt-handlers are real; the launchers are
// played, and the API server is made up.
type moving struct {
	*testing.T
	api            client.WithWatch // what the virt-handlers see of the API server
	raw            client.WithWatch
	away           atomic.Bool // the API server does not answer the virt-handlers
	clock          *clocks.FakeClock
	here           *node.Reconciler
	there          *migration.Arrivals
	source, target *played
	// older: the target's virt-handler answers an offer with nothing.
	older bool
}

// played is a launcher that a test plays. It answers every command, and keeps what it was asked.
type played struct {
	*testing.T
	conn *control.Conn
	// acts is held by what the launcher does, be it asked for by a command or by the test, until its state is reported: a
	// launcher does one thing after the other.
	acts sync.Mutex

	mu      sync.Mutex
	asked   []string
	refuse  map[string]string          // errors, by command
	answers map[string]string          // by command
	given   map[string]json.RawMessage // the last arguments, by command
	state   control.StateReport
	ends    []*os.File
}

func newMoving(t *testing.T) *moving {
	t.Helper()
	return newMovingTo(t, "there")
}

// newMovingTo does what newMoving does. If the guest is to move to another pod of the node here, one virt-handler is
// source and target.
func newMovingTo(t *testing.T, name string) *moving {
	t.Helper()
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "vm", UID: "u"}}
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("64Mi"))}
	vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "root", Disk: &v1.DiskTarget{Bus: "virtio"}}}
	vmi.Spec.Volumes = []v1.Volume{{Name: "root", EmptyDisk: &v1.EmptyDiskSource{}}}
	first, second := v1.LauncherPodName("vm", "u", v1.FirstPod), v1.LauncherPodName("vm", "u", "m")
	vmi.Status = v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: "here",
		ActivePods: map[types.UID]string{"p1": "here", "p2": name},
		LauncherPods: []v1.LauncherPod{{Name: first, UID: "p1", IPs: []string{"10.244.0.5"}},
			{Name: second, UID: "p2", IPs: []string{"10.244.0.5"}}},
		MigrationState: &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m", SourceNode: "here", SourcePod: first,
			TargetNode: name, TargetPod: second}}
	m := &moving{T: t, clock: clocks.NewFakeClock(time.Now())}
	gone := errors.New("the API server is away")
	m.raw = fake.NewClientBuilder().WithScheme(nodetest.Scheme(t)).WithObjects(vmi).WithStatusSubresource(vmi).Build()
	m.api = interceptor.NewClient(m.raw, interceptor.Funcs{
		Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object,
			options ...client.GetOption) error {
			if m.away.Load() {
				return gone
			}
			return w.Get(ctx, key, o, options...)
		},
		SubResourcePatch: func(ctx context.Context, w client.Client, sub string, o client.Object, p client.Patch,
			options ...client.SubResourcePatchOption) error {
			if m.away.Load() {
				return gone
			}
			return w.SubResource(sub).Patch(ctx, o, p, options...)
		},
	})
	netns := nodetest.PodNetwork(t)
	machine := &qemuargs.Machine{Version: qemuargs.Version, Type: "pc-q35-7.2", Accelerator: qemuargs.TCG,
		MemoryBytes: 64 << 20, Disks: []qemuargs.Disk{{Name: "root", Driver: qemuargs.VirtioBlk}}}
	a, greeted := m.sessions()
	b, alsoGreeted := a, greeted
	if name != "here" {
		b, alsoGreeted = m.sessions()
	}
	m.source = m.launcher(a, greeted, netns, first, control.StateReport{State: control.StateRunning, Machine: machine})
	m.target = m.launcher(b, alsoGreeted, netns, second, control.StateReport{State: control.StateWaiting})
	m.here = &node.Reconciler{Client: m.api, Live: m.api, Events: events.NewFakeRecorder(100), Clock: m.clock,
		NodeName: "here", Starter: m.starter(), Sessions: a}
	m.there = m.arrivals("there", b)
	if name == "here" {
		m.there = m.arrivals("here", a)
	}
	m.restart()
	return m
}

// node returns what a node's virt-handler knows of the node.
func (m *moving) node(name string, set *sessions.Set) *migration.Node {
	return &migration.Node{Name: name, Client: m.api, Live: m.api, Clock: m.clock, Sessions: set}
}

func (m *moving) starter() *start.Starter {
	return &start.Starter{Chooser: nodetest.Emulating(), Clock: m.clock,
		Wiring: wiring.Wirer{Events: events.NewFakeRecorder(100)}}
}

// arrivals returns the Arrivals of a virt-handler that was just started.
func (m *moving) arrivals(name string, set *sessions.Set) *migration.Arrivals {
	return &migration.Arrivals{Node: m.node(name, set), Starter: m.starter(), Coming: m.api, Address: "192.0.2.2"}
}

// restart starts the source's virt-handler anew.
func (m *moving) restart() {
	if m.here.Departures != nil {
		m.here.Departures.Close()
	}
	m.here.Departures = migration.NewDepartures(m.node("here", m.here.Sessions), m)
	m.Cleanup(m.here.Departures.Close)
}

// Prepare brings an offer from the one virt-handler to the other, without TLS.
func (m *moving) Prepare(ctx context.Context, to peers.Destination, offer *peers.Offer) (*peers.Answer, error) {
	answer, err := m.there.Prepare(ctx, "here", to.Migration, offer)
	if err != nil { // as package peers answers
		code := http.StatusConflict
		if errors.Is(err, peers.ErrNotYet) {
			code = http.StatusServiceUnavailable
		}
		return nil, &handlerapi.Error{Code: code, Text: err.Error()}
	}
	if m.older {
		return &peers.Answer{}, nil
	}
	return answer, nil
}

// prepare offers the target's virt-handler a guest, and drops the answer.
func (m *moving) prepare(from string, uid types.UID, offer *peers.Offer) error {
	_, err := m.there.Prepare(m.Context(), from, uid, offer)
	return err
}

func (m *moving) State(ctx context.Context, to peers.Destination) (net.Conn, error) {
	return m.there.State(ctx, "here", to.Migration)
}

func (m *moving) Disk(ctx context.Context, to peers.Destination, disk string) (net.Conn, error) {
	return m.there.Disk(ctx, "here", to.Migration, disk)
}

func (m *moving) Receive(ctx context.Context, to peers.Destination) error {
	return m.there.Receive(ctx, "here", to.Migration)
}

// sessions returns the sessions of a virt-handler. Each report of a launcher greets.
func (m *moving) sessions() (*sessions.Set, chan struct{}) {
	greeted := make(chan struct{}, 100)
	return sessions.NewSet(testr.New(m.T), func(types.NamespacedName) { greeted <- struct{}{} }), greeted
}

// launcher connects a launcher that is played with a virt-handler.
func (m *moving) launcher(set *sessions.Set, greeted chan struct{}, netns ns.NetNS, pod string,
	state control.StateReport) *played {
	m.Helper()
	ours, theirs := testkit.SocketPair(m.T)
	if !set.Connect("slot of "+pod, types.NamespacedName{Namespace: "default", Name: pod}, control.NewConn(ours)) {
		m.Fatal("the launcher is not taken")
	}
	p := &played{T: m.T, conn: control.NewConn(theirs), state: state,
		refuse: map[string]string{}, given: map[string]json.RawMessage{},
		answers: map[string]string{control.CommandMigrate: `{"id":1}`, control.CommandReceive: `{"id":1}`}}
	hello := nodetest.Hello()
	hello.State = state
	nodetest.NewLauncher(m.T, theirs).Send(control.EventHello, hello, nodetest.NetNSFile(m.T, netns))
	theirs.SetReadDeadline(time.Time{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.play()
	}()
	m.Cleanup(func() { set.Close(); theirs.Close(); <-done; p.close() })
	<-greeted
	return p
}

// play answers until the connection ends.
func (p *played) play() {
	for {
		command, err := p.conn.Receive()
		if err != nil {
			return
		}
		command.Close()
		if !p.follow(command) {
			return
		}
	}
}

// follow answers a command, does what it asks, and says whether the connection goes on.
func (p *played) follow(command *control.Message) bool {
	p.acts.Lock()
	defer p.acts.Unlock()
	answer := p.answerTo(command)
	err := p.conn.Send(answer)
	for _, f := range answer.Files {
		f.Close()
	}
	if err == nil && answer.Error == nil {
		p.obey(command.Execute)
	}
	return err == nil
}

// answerTo notes a command, and returns its answer.
func (p *played) answerTo(command *control.Message) control.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	if command.Execute != control.CommandQueryState {
		p.asked = append(p.asked, command.Execute)
		p.given[command.Execute] = slices.Clone(command.Data)
	}
	answer := control.Message{ID: command.ID, Return: json.RawMessage("{}")}
	if text, ok := p.answers[command.Execute]; ok {
		answer.Return = json.RawMessage(text)
	}
	if command.Execute == control.CommandExportDisk && slices.Contains(p.asked, control.CommandReceive) {
		p.refuse[command.Execute] = "the channels are in use"
	}
	if why, ok := p.refuse[command.Execute]; ok {
		answer.Return, answer.Error = nil, &control.RemoteError{Description: why}
	} else if brought, ok := control.AnswerFile(command.Execute); ok {
		ours, theirs := testkit.SocketPair(p.T)
		file, _ := theirs.File()
		theirs.Close()
		own, _ := ours.File()
		ours.Close()
		p.ends = append(p.ends, own)
		answer.Files = []control.File{{Name: brought.Name, File: file}}
	}
	if command.Execute == control.CommandQueryState {
		answer.Return, _ = json.Marshal(p.state)
	}
	return answer
}

// answer lets the launcher answer a command with a text.
func (p *played) answer(command, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers[command] = text
}

// refuses lets the launcher answer a command with an error.
func (p *played) refuses(command, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse[command] = why
}

// obey does what follows a command at once.
func (p *played) obey(command string) {
	switch command {
	case control.CommandStart:
		p.tell(control.StateReceiving)
	case control.CommandMigrate:
		p.tell(p.is().State, job(control.JobMigrate, control.JobRunning))
	case control.CommandCancelJob:
		p.tell(control.StateRunning, job(control.JobMigrate, control.JobCanceled))
	case control.CommandRelease:
		p.tell(control.StateExited)
	case control.CommandRun, control.CommandTakeBack:
		// A launcher that has ended runs nothing.
		if !strings.Contains(p.answerOf(command), "refused") && p.is().State != control.StateExited {
			p.tell(control.StateRunning, p.is().Jobs...)
		}
	}
}

// answerOf returns the text of a command's answer.
func (p *played) answerOf(command string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.answers[command]
}

func (p *played) is() control.StateReport {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

// report lets the launcher report a state, with its jobs, once it has done what it has heard of.
func (p *played) report(state control.State, jobs ...control.Job) {
	p.acts.Lock()
	defer p.acts.Unlock()
	p.tell(state, jobs...)
}

// tell sends a state. Its caller holds acts.
func (p *played) tell(state control.State, jobs ...control.Job) {
	p.mu.Lock()
	p.state.State, p.state.Jobs = state, jobs
	data, _ := json.Marshal(p.state)
	p.mu.Unlock()
	_ = p.conn.Send(control.Message{Event: control.EventState, Data: data})
}

func (p *played) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.ends {
		f.Close()
	}
}

// arguments returns the arguments of the last command of a kind.
func (p *played) arguments(command string) json.RawMessage {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.given[command]
}

// wasAsked returns how often the launcher was asked for a command.
func (p *played) wasAsked(command string) int {
	return len(slices.DeleteFunc(p.commands(), func(c string) bool { return c != command }))
}

// commands returns all that the launcher was asked for.
func (p *played) commands() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

// sent lets a source report that it has sent everything.
func (p *played) sent() {
	p.acts.Lock()
	defer p.acts.Unlock()
	p.mu.Lock()
	p.state.Migration = &control.MigrationReport{Transferred: 1000, DowntimeMilliseconds: 42}
	p.mu.Unlock()
	p.tell(control.StateMoved, control.Job{ID: 1, Kind: control.JobMigrate, Target: control.JobTargetGuest,
		State: control.JobDone, Done: 1000})
}

func (m *moving) vmi() *v1.VirtualMachineInstance {
	m.Helper()
	vmi := &v1.VirtualMachineInstance{}
	if err := m.raw.Get(context.Background(), m.request().NamespacedName, vmi); err != nil {
		m.Fatal(err)
	}
	return vmi
}

func (m *moving) status() *v1.VirtualMachineInstanceMigrationState {
	return m.vmi().Status.MigrationState
}

// decide writes what virt-controller writes.
func (m *moving) decide(d v1.MigrationDecision) {
	m.Helper()
	for range 100 {
		vmi := m.vmi()
		vmi.Status.MigrationState.Decision = d
		if m.raw.Status().Update(context.Background(), vmi) == nil {
			return
		}
	}
	m.Fatal("the decision cannot be written")
}

// until reconciles on both nodes until something is so.
func (m *moving) until(what string, so func() bool) {
	m.Helper()
	testkit.Eventually(m, what, func() error {
		for range 10 { // at an even pace: some tests move the clock on at each look
			if so() {
				return nil
			}
			m.turn()
			time.Sleep(5 * time.Millisecond)
		}
		return fmt.Errorf("the status is %+v; the source was asked for %v, the target for %v", m.status(),
			m.source.commands(), m.target.commands())
	})
}

// request returns the request for the VMI whose guest moves.
func (m *moving) request() ctrl.Request {
	return ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: "vm"}}
}

// left returns the session of the source's launcher, or nil.
func (m *moving) left() *sessions.Session {
	return m.here.Sessions.Get(types.NamespacedName{Namespace: "default", Name: m.status().SourcePod})
}

// failed returns the job of a source whose sending has failed.
func failed(why string) control.Job {
	j := job(control.JobMigrate, control.JobFailed)
	j.Error = why
	return j
}

// turn lets both sides look once.
func (m *moving) turn() {
	m.Helper()
	_, _ = m.there.Reconcile(context.Background(), m.request())
	if m.there.Node.Name == "here" {
		_, _ = m.here.Reconcile(context.Background(), m.request())
		m.settle()
	} else if launcher := m.left(); launcher != nil {
		m.here.Departures.Step(m.vmi(), launcher)
	}
}

// settle writes what virt-controller writes once it is decided where the guest runs. Another program may be faster.
func (m *moving) settle() {
	vmi := m.vmi()
	if vmi.Status.Settle(); !m.away.Load() {
		_ = m.raw.Status().Update(context.Background(), vmi)
	}
}

// copies brings the guest to where it is copied.
func (m *moving) copies() {
	m.Helper()
	m.until("copied", func() bool {
		return m.source.wasAsked(control.CommandMigrate) == 1 && m.status().SourceState != nil
	})
}

// idle waits until nothing goes on at the source any more.
func (m *moving) idle() {
	m.Helper()
	m.until("idle", m.here.Departures.Idle)
}

// runsOn checks that just one launcher was told to let the guest run, or never let it stand. virt-handler tells again
// until it has heard that the guest runs, and the launcher tells QEMU once. virt-handler may release the source again
// as long as its launcher is there.
func (m *moving) runsOn(side v1.MigrationDecision) {
	m.Helper()
	ran, released := m.target.wasAsked(control.CommandRun), m.source.wasAsked(control.CommandRelease)
	back := m.source.is().State == control.StateRunning
	there := ran > 0 && released > 0 && !back
	here := released == 0 && back && m.target.is().State != control.StateRunning
	good := side == v1.DecisionTarget && there || side == v1.DecisionSource && here
	if !good || m.status().Decision != side {
		m.Errorf("decided is %s; the source is %s, the target %s; run %d times, released %d times", m.status().Decision,
			m.source.is().State, m.target.is().State, ran, released)
	}
}

// TestGuestMovesToTheTarget: the guest goes to the target, which says so before it lets the guest run.
func TestGuestMovesToTheTarget(t *testing.T) {
	m := newMoving(t)
	m.copies()
	if s := m.status(); s.TargetState.NodeAddress != "192.0.2.2" || s.SourceState.StartTimestamp == nil ||
		s.Decision != "" {
		t.Errorf("as it is copied: %+v", s)
	}
	for command, times := range map[string]int{control.CommandOpenChannel: 1, control.CommandMirrorDisk: 1} {
		if got := m.source.wasAsked(command); got != times {
			t.Errorf("the source was asked %d times for %s", got, command)
		}
	}
	for command, times := range map[string]int{control.CommandStart: 1, control.CommandOpenChannel: 1,
		control.CommandReceive: 1, control.CommandExportDisk: 1, control.CommandRun: 0} {
		if got := m.target.wasAsked(command); got != times {
			t.Errorf("the target was asked %d times for %s", got, command)
		}
	}
	// What QEMU sends at one end arrives at the other.
	if _, err := m.source.ends[0].WriteString("state"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := m.target.ends[0].Read(got); err != nil || string(got) != "state" {
		t.Errorf("%q arrives, %v", got, err)
	}
	m.source.sent()
	m.target.report(control.StateReceived)
	m.until("released", func() bool { return m.source.wasAsked(control.CommandRelease) > 0 })
	m.idle()
	m.runsOn(v1.DecisionTarget)
	if s := m.status(); s.TargetState.DomainReadyTimestamp == nil || s.SourceState.Progress.DowntimeMilliseconds != 42 ||
		!s.TargetState.DomainDetected {
		t.Errorf("%+v %+v", s.TargetState, s.SourceState)
	}
}

// TestGuestStaysWhateverFails: whatever fails, the guest stays, and the reason is said.
func TestGuestStaysWhateverFails(t *testing.T) {
	for name, c := range map[string]struct {
		fail func(m *moving)
		says string
	}{
		"the target's launcher refuses": {func(m *moving) { m.target.refuses(control.CommandStart, "no room") }, "no room"},
		"the source's launcher refuses": {func(m *moving) { m.source.refuses(control.CommandMigrate, "the guest reboots") },
			"the guest reboots"},
		"a disk cannot be exported": {func(m *moving) { m.target.refuses(control.CommandExportDisk, "no such disk") },
			"no such disk"},
		"the copying fails": {func(m *moving) {
			m.copies()
			m.source.report(control.StateRunning, failed("it takes too long"))
		}, "it takes too long"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoving(t)
			c.fail(m)
			m.until("decided", func() bool { return m.status().Decision != "" })
			m.idle()
			m.runsOn(v1.DecisionSource)
			if s := m.status(); s.SourceState == nil || !strings.Contains(s.SourceState.Failure, c.says) {
				t.Errorf("%+v", s.SourceState)
			}
		})
	}
}

// TestMigrationIsCancelledDuringTheCopy: virt-controller decides for the source as the guest is copied.
func TestMigrationIsCancelledDuringTheCopy(t *testing.T) {
	m := newMoving(t)
	m.copies()
	m.decide(v1.DecisionSource)
	m.until("cancelled", func() bool { return m.source.wasAsked(control.CommandCancelJob) > 0 })
	m.target.report(control.StateReceived) // it has everything all the same
	m.idle()
	m.runsOn(v1.DecisionSource)
	if m.target.wasAsked(control.CommandRun) != 0 {
		t.Error("the target was told to run the guest")
	}
}

// TestSourceHasSentAllAndTargetIsSilent: the source has sent everything, and the target does not say that it has the
// guest.
func TestSourceHasSentAllAndTargetIsSilent(t *testing.T) {
	m := newMoving(t)
	m.copies()
	m.source.sent()
	m.until("waiting", func() bool { return m.source.is().State == control.StateMoved })
	if m.source.wasAsked(control.CommandTakeBack) != 0 {
		t.Error("the target was not waited for")
	}
	m.until("taken back", func() bool {
		m.clock.Step(time.Second)
		return m.source.wasAsked(control.CommandTakeBack) > 0
	})
	m.idle()
	m.target.report(control.StateReceived) // too late
	m.until("looked at", func() bool { return m.target.is().State == control.StateReceived })
	m.runsOn(v1.DecisionSource)
}

// TestWithoutAPIServerGuestRunsOnOneSide: without the API server the guest stands still on both sides, and runs on
// one of them afterwards.
func TestWithoutAPIServerGuestRunsOnOneSide(t *testing.T) {
	for _, late := range []bool{false, true} {
		m := newMoving(t)
		m.copies()
		m.away.Store(true)
		m.source.sent()
		m.target.report(control.StateReceived)
		if late {
			m.clock.Step(migration.DecisionPatience + time.Second)
		}
		m.until("looked at", func() bool { return m.target.is().State == control.StateReceived })
		for range 20 {
			m.turn()
			asked := m.target.wasAsked(control.CommandRun) + m.source.wasAsked(control.CommandTakeBack) +
				m.source.wasAsked(control.CommandRelease)
			if asked > 0 || m.status().Decision != "" {
				t.Fatalf("decided without the API server: %v, %v", m.source.commands(), m.target.commands())
			}
		}
		m.away.Store(false)
		m.until("decided", func() bool {
			return m.source.wasAsked(control.CommandRelease) > 0 || m.source.wasAsked(control.CommandTakeBack) > 0
		})
		m.idle()
		m.runsOn(m.status().Decision)
	}
}

// TestSourceTakesBackWhatTheTargetRefuses: the target's QEMU does not let the guest run, and the source takes it back.
func TestSourceTakesBackWhatTheTargetRefuses(t *testing.T) {
	m := newMoving(t)
	m.target.answer(control.CommandRun, `{"refused":"Failed to get a lock"}`)
	m.copies()
	m.source.sent()
	m.target.report(control.StateReceived)
	m.until("taken back", func() bool { return m.source.wasAsked(control.CommandTakeBack) > 0 })
	m.idle()
	m.runsOn(v1.DecisionSource)
	if s := m.status(); !strings.Contains(s.TargetState.Failure, "Failed to get a lock") {
		t.Errorf("%+v", s.TargetState)
	}
}

// TestSourceDoesNotTakeBackWhatMayHaveRun: the target's launcher does not say whether the guest ran. Its source must
// not take it back.
func TestSourceDoesNotTakeBackWhatMayHaveRun(t *testing.T) {
	m := newMoving(t)
	m.target.refuses(control.CommandRun, "QEMU does not answer")
	m.copies()
	m.source.sent()
	m.target.report(control.StateReceived)
	m.until("tried", func() bool { return m.target.wasAsked(control.CommandRun) > 1 })
	if m.source.wasAsked(control.CommandTakeBack) != 0 || m.status().Decision != v1.DecisionTarget {
		t.Errorf("%+v, the source was asked for %v", m.status(), m.source.commands())
	}
}

// TestSilentTargetQEMUIsGivenUp: a QEMU that never says whether it lets a guest run does not keep the guest standing
// still for ever.
func TestSilentTargetQEMUIsGivenUp(t *testing.T) {
	m := newMoving(t)
	m.target.refuses(control.CommandRun, "QEMU does not answer")
	m.copies()
	m.source.sent()
	m.target.report(control.StateReceived)
	m.until("asked to run", func() bool { return m.target.wasAsked(control.CommandRun) > 2 })
	if m.target.wasAsked(control.CommandShutdown) != 0 {
		t.Error("a guest ends at once whose QEMU does not answer")
	}
	m.clock.Step(migration.RunPatience)
	m.until("ended", func() bool { return m.target.wasAsked(control.CommandShutdown) > 0 })
	if s := m.status(); s.Decision != v1.DecisionTarget {
		t.Errorf("%+v", s)
	}
}

// TestRestartedHandlerGoesOnWithMigrations: a virt-handler that was restarted goes on with the guests that its
// predecessor has sent.
func TestRestartedHandlerGoesOnWithMigrations(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(m *moving)
		on        v1.MigrationDecision
	}{
		"as it is copied": {func(*moving) {}, v1.DecisionSource},
		"as it is sent":   {func(m *moving) { m.source.sent(); m.target.report(control.StateReceived) }, v1.DecisionTarget},
		"as it is refused": {func(m *moving) {
			m.source.report(control.StateRunning, failed("x"))
		}, v1.DecisionSource},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoving(t)
			m.copies()
			m.here.Departures.Close()
			c.meanwhile(m)
			m.until("reported", func() bool {
				s := m.left()
				return s.State().State == m.source.is().State
			})
			m.restart()
			m.until("over", func() bool {
				return m.source.wasAsked(control.CommandRelease) > 0 || m.status().Decision == v1.DecisionSource
			})
			m.idle()
			m.runsOn(c.on)
		})
	}
}

// TestUnexpectedGuestIsNotReceived: no other guest is received, from no other node, and each channel once.
func TestUnexpectedGuestIsNotReceived(t *testing.T) {
	m := newMoving(t)
	offer := func(change func(*peers.Offer)) *peers.Offer {
		o := &peers.Offer{Namespace: "default", Name: "vm", UID: "u", QEMUVersion: "7.2.22", Machine: *m.source.is().Machine}
		change(o)
		return o
	}
	same := func(*peers.Offer) {}
	m.until("ready", func() bool { return m.there.Expects(t.Context(), "here") })
	if m.there.Expects(t.Context(), "elsewhere") {
		t.Error("a guest is expected from another node")
	}
	for name, err := range map[string]error{
		"another node":      m.prepare("elsewhere", "m", offer(same)),
		"another migration": m.prepare("here", "n", offer(same)),
		"another VMI":       m.prepare("here", "m", offer(func(o *peers.Offer) { o.Name = "other" })),
		"an earlier VMI":    m.prepare("here", "m", offer(func(o *peers.Offer) { o.UID = "v" })),
	} {
		if !errors.Is(err, peers.ErrUnexpected) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m.until("copied", func() bool { return m.source.wasAsked(control.CommandMigrate) == 1 })
	for name, open := range map[string]func() (net.Conn, error){
		"the state again":  func() (net.Conn, error) { return m.there.State(t.Context(), "here", "m") },
		"received again":   func() (net.Conn, error) { return nil, m.there.Receive(t.Context(), "here", "m") },
		"a disk again":     func() (net.Conn, error) { return m.there.Disk(t.Context(), "here", "m", "root") },
		"another disk":     func() (net.Conn, error) { return m.there.Disk(t.Context(), "here", "m", "other") },
		"from another one": func() (net.Conn, error) { return m.there.State(t.Context(), "elsewhere", "m") },
	} {
		if _, err := open(); !errors.Is(err, peers.ErrUnexpected) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m.decide(v1.DecisionSource)
	m.until("cancelled", func() bool { return !m.there.Expects(t.Context(), "here") })
}

// TestMigrationEndedWhileTheSourceWasAway: the migration has ended while the source's virt-handler was away, and its
// guest still stands.
func TestMigrationEndedWhileTheSourceWasAway(t *testing.T) {
	for decision, command := range map[v1.MigrationDecision]string{v1.DecisionSource: control.CommandTakeBack,
		v1.DecisionTarget: control.CommandRelease} {
		m := newMoving(t)
		m.copies()
		m.here.Departures.Close()
		m.source.sent()
		vmi := m.vmi()
		s := vmi.Status.MigrationState
		s.Decision, s.Completed, s.Failed = decision, true, decision == v1.DecisionSource
		s.TargetState = &v1.MigrationTargetState{DomainReadyTimestamp: &metav1.Time{Time: time.Now()}}
		if err := m.raw.Status().Update(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
		m.until("reported", func() bool {
			return m.left().State().State == control.StateMoved
		})
		m.restart()
		m.until("done", func() bool { return m.source.wasAsked(command) > 0 })
		m.idle()
	}
}

// TestMigrationToAnotherPodOfTheNode: the guest goes to another pod of its node, and one virt-handler is source and
// target. The guest runs in one of the two pods, also where that virt-handler is restarted on the way.
func TestMigrationToAnotherPodOfTheNode(t *testing.T) {
	sent := func(m *moving) { m.source.sent(); m.target.report(control.StateReceived) }
	away := func(m *moving) {
		m.here.Departures.Close()
		m.there = m.arrivals("here", m.here.Sessions)
	}
	for name, c := range map[string]struct {
		happens func(*moving)
		on      v1.MigrationDecision
	}{
		"it moves": {sent, v1.DecisionTarget},
		"the copying fails": {func(m *moving) {
			m.source.report(control.StateRunning, failed("x"))
		}, v1.DecisionSource},
		"restarted as it is copied": {func(m *moving) { away(m); m.target.report(control.StateExited) },
			v1.DecisionSource},
		"restarted as it is sent": {func(m *moving) { away(m); sent(m) }, v1.DecisionTarget},
		"restarted after the decision": {func(m *moving) { away(m); sent(m); m.decide(v1.DecisionTarget); m.settle() },
			v1.DecisionTarget},
		"restarted as it runs": {func(m *moving) {
			away(m)
			sent(m)
			m.decide(v1.DecisionTarget)
			m.settle()
			m.until("run", func() bool { return m.target.wasAsked(control.CommandRun) > 0 })
		}, v1.DecisionTarget},
		"the target's QEMU does not let it run": {func(m *moving) {
			m.target.answer(control.CommandRun, `{"refused":"Failed to get a lock"}`)
			sent(m)
		}, v1.DecisionSource},
		"restarted, and the target's QEMU has not all of it": {func(m *moving) {
			away(m)
			m.source.sent()
			m.target.report(control.StateExited)
		}, v1.DecisionSource},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMovingTo(t, "here")
			m.copies()
			c.happens(m)
			m.until("reported", func() bool {
				s := m.left()
				return s.State().State == m.source.is().State
			})
			m.restart()
			m.until("over", func() bool {
				m.clock.Step(time.Second)
				return m.source.wasAsked(control.CommandRelease) > 0 || m.status().Decision == v1.DecisionSource &&
					m.source.is().State == control.StateRunning
			})
			m.idle()
			m.runsOn(c.on)
			pod := map[v1.MigrationDecision]string{v1.DecisionSource: m.status().SourcePod,
				v1.DecisionTarget: m.status().TargetPod}[c.on]
			m.until("settled", func() bool { vmi := m.vmi(); return vmi.LauncherPod() == pod && vmi.Status.NodeName == "here" })
			for name, p := range map[string]*played{"source": m.source, "target": m.target} {
				if n := p.wasAsked(control.CommandShutdown); n > 0 {
					t.Errorf("the %s was asked %d times to shut down", name, n)
				}
			}
		})
	}
}

// TestLeftLauncherOfTheSameNodeIsEnded: the guest went to another pod of the same node while virt-handler was away.
// The next virt-handler ends the launcher that the guest has left, whether it still has the guest or not.
func TestLeftLauncherOfTheSameNodeIsEnded(t *testing.T) {
	for name, c := range map[string]struct {
		leave   func(*moving)
		command string
	}{
		"moved":      {func(m *moving) { m.source.sent() }, control.CommandRelease},
		"still runs": {func(*moving) {}, control.CommandShutdown},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoving(t)
			m.copies()
			m.here.Departures.Close()
			c.leave(m)
			vmi := m.vmi()
			s := vmi.Status.MigrationState
			s.Decision, s.Completed, s.TargetNode = v1.DecisionTarget, true, "here"
			s.TargetState = &v1.MigrationTargetState{DomainReadyTimestamp: &metav1.Time{Time: time.Now()}}
			vmi.Status.Settle()
			if vmi.Status.NodeName != "here" || vmi.Status.LauncherPod != s.TargetPod {
				t.Fatalf("the guest is in %s on %s", vmi.Status.LauncherPod, vmi.Status.NodeName)
			}
			if err := m.raw.Status().Update(t.Context(), vmi); err != nil {
				t.Fatal(err)
			}
			m.until("reported", func() bool {
				return m.left().State().State == m.source.is().State
			})
			m.restart()
			testkit.Eventually(t, "a question to the source", func() error {
				if m.source.wasAsked(c.command) > 0 {
					return nil
				}
				if _, err := m.here.Reconcile(t.Context(), m.request()); err != nil {
					t.Fatal(err)
				}
				return fmt.Errorf("it was asked for %v", m.source.commands())
			})
			m.idle()
		})
	}
}

// TestGuestThatRunsOnTheTargetIsEndedHere: a guest that runs here although it is decided that it runs on the target
// is ended at once.
func TestGuestThatRunsOnTheTargetIsEndedHere(t *testing.T) {
	m := newMoving(t)
	m.copies()
	m.decide(v1.DecisionTarget)
	m.here.Departures.Close()
	m.restart()
	m.until("ended", func() bool { return m.source.wasAsked(control.CommandShutdown) > 0 })
}

// TestSourceWritesBeforeItSends: the source writes that it sends the guest before its launcher is asked to. If that
// cannot be written, nothing is sent, and so it is if somebody has decided already.
func TestSourceWritesBeforeItSends(t *testing.T) {
	m := newMoving(t)
	m.source.refuses(control.CommandMigrate, "the guest reboots")
	m.until("decided", func() bool { return m.status().Decision != "" })
	m.idle()
	if !m.status().Sends() {
		t.Errorf("the launcher was asked, and the source says %+v", m.status().SourceState)
	}
	for name, c := range map[string]struct {
		before func(m *moving)
		want   error
	}{
		"the API server is away": {func(m *moving) { m.away.Store(true) }, nil},
		"the target has decided": {func(m *moving) { m.decide(v1.DecisionTarget) }, migration.ErrDecided},
		"it was cancelled":       {func(m *moving) { m.decide(v1.DecisionSource) }, migration.ErrDecided},
	} {
		m := newMoving(t)
		vmi := m.vmi()
		c.before(m)
		if err := m.here.Departures.Begin(t.Context(), vmi); err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// copiesState puts the guest's state on a claim from which it moves to another.
func (m *moving) copiesState() {
	m.Helper()
	vmi := m.vmi()
	vmi.Spec.Domain.Firmware = &v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{Persistent: ptr.To(true)}}}
	if err := m.raw.Update(context.Background(), vmi); err != nil {
		m.Fatal(err)
	}
	state := vmi.Status.MigrationState
	state.SourcePersistentStatePVCName, state.TargetPersistentStatePVCName = "old", "new"
	if err := m.raw.Status().Update(context.Background(), vmi); err != nil {
		m.Fatal(err)
	}
}

// TestSourceSendsUEFIVariables: the source sends the UEFI variables of a guest whose state goes to another claim, as
// a disk.
func TestSourceSendsUEFIVariables(t *testing.T) {
	m := newMoving(t)
	m.copiesState()
	m.copies()
	for launcher, command := range map[*played]string{m.source: control.CommandMirrorDisk,
		m.target: control.CommandExportDisk} {
		if got := string(launcher.arguments(command)); launcher.wasAsked(command) != 2 ||
			!strings.Contains(got, control.VariablesDisk) {
			t.Errorf("%s was asked %d times, at last for %s", command, launcher.wasAsked(command), got)
		}
	}
	m.source.sent()
	m.target.report(control.StateReceived)
	m.until("released", func() bool { return m.source.wasAsked(control.CommandRelease) > 0 })
	m.idle()
	m.runsOn(v1.DecisionTarget)
}

// TestGuestStaysIfSourceSendsNoUEFIVariables: a source's virt-handler that does not send the UEFI variables cannot
// have the guest come without them.
func TestGuestStaysIfSourceSendsNoUEFIVariables(t *testing.T) {
	m := newMoving(t)
	m.copiesState()
	offer := &peers.Offer{Version: peers.Version, Namespace: "default", Name: "vm", UID: "u",
		Machine: *m.source.is().Machine, QEMUVersion: "7.2.22"}
	if err := m.prepare("here", "m", offer); err != nil {
		t.Fatal(err)
	}
	if err := m.there.Receive(t.Context(), "here", "m"); err == nil || !strings.Contains(err.Error(),
		"does not send the UEFI variables") {
		t.Errorf("the target receives: %v", err)
	}
	if m.target.wasAsked(control.CommandReceive) > 0 {
		t.Error("the launcher was asked to receive the guest")
	}
}
