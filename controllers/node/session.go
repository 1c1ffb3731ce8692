package node

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/netsetup"
)

// session is one launcher on the line. Who it is was proven before (see
// Slots); nothing it says changes that.
type session struct {
	slot   string
	since  time.Time // it dialed
	pod    types.NamespacedName
	client *control.Client

	// Set by hello, and not changed after.
	qemuVersion string
	features    []string
	// links are what the CNI plugins left in the pod, by the link's name there.
	links map[string]netsetup.Facts

	// events bounds how often a launcher can make virt-handler work.
	events *rate.Limiter

	// agentNews holds a signal while agentSaid is set.
	agentNews chan struct{}

	mu    sync.Mutex
	state control.StateReport
	// agent is nil until the launcher has said something of the guest's agent,
	// agentSaid the newest that it said and that has not been read.
	agent     *control.AgentReport
	agentSaid json.RawMessage
	silent    bool
	growths   map[string]growth // of disks on claims, by name
	// question is the last about statistics.
	question *statsQuestion

	// inNetNS is held for reading while somebody works in the namespace, so
	// that its descriptor is not closed, and its number not given to another
	// pod's, under them.
	inNetNS sync.RWMutex
	netns   ns.NetNS // nil before hello and after close
}

// inside runs work with the pod's network namespace, unless the session ended.
func (s *session) inside(work func(ns.NetNS) error) error {
	s.inNetNS.RLock()
	defer s.inNetNS.RUnlock()
	if s.netns == nil {
		return control.ErrClosed
	}
	return work(s.netns)
}

func (s *session) State() control.StateReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (s *session) setState(state control.StateReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = state
}

// Silent says whether the launcher owes an answer for some time.
func (s *session) Silent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.silent
}

// setSilent returns whether that is news.
func (s *session) setSilent(silent bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	news := s.silent != silent
	s.silent = silent
	return news
}

func (s *session) close() {
	s.client.Close()
	s.inNetNS.Lock()
	defer s.inNetNS.Unlock()
	if s.netns != nil {
		s.netns.Close()
		s.netns = nil
	}
}

// Sessions are the launchers on the line, by pod.
type Sessions struct {
	log logr.Logger
	// changed is told of every hello and state report; it must not block.
	changed func(pod types.NamespacedName)

	mu    sync.Mutex
	byPod map[types.NamespacedName]*session
	// greeting are the slots with a connection that has not said hello.
	greeting map[string]bool
	// serving is how many connections of a slot are served.
	serving map[string]int
	// closers close what the launchers of slots have sent.
	closers map[string]*control.Closer
	// decoding bounds how many of launchers' messages are decoded at once.
	decoding control.Turns
	// gone is since when a pod's launcher has not been on the line.
	gone    map[types.NamespacedName]time.Time
	opened  time.Time
	closed  bool
	closing chan struct{}
	wait    sync.WaitGroup

	// probeInterval and probePatience, but in tests.
	interval, patience time.Duration
	// agentInterval, but in tests.
	agentInterval time.Duration
}

// NewSessions makes an empty set.
func NewSessions(log logr.Logger, changed func(types.NamespacedName)) *Sessions {
	return &Sessions{log: log, changed: changed, byPod: map[types.NamespacedName]*session{},
		greeting: map[string]bool{}, serving: map[string]int{}, closers: map[string]*control.Closer{}, decoding: control.NewTurns(maxDecoding), gone: map[types.NamespacedName]time.Time{}, opened: time.Now(),
		closing: make(chan struct{}), interval: probeInterval, patience: probePatience, agentInterval: agentInterval}
}

// Get returns the session of a pod that has said hello, or nil.
func (s *Sessions) Get(pod types.NamespacedName) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byPod[pod]
}

// A launcher reports a handful of states in a VM's life.
const (
	eventRate  = 2 // a second
	eventBurst = 20
)

// helloTimeout is how long a launcher may take to say hello.
const helloTimeout = 10 * time.Second

// Connected says whether a slot has a connection.
func (s *Sessions) Connected(slotID string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, launcher := range s.byPod {
		if launcher.slot == slotID {
			return true
		}
	}
	return s.greeting[slotID]
}

const (
	// maxServing is a launcher's connection, the one before, which is ending, and one more.
	maxServing = 3
	// maxDecoding bounds the memory that it takes to read what launchers say.
	maxDecoding = 4
)

// Connect takes a new connection of a slot, or returns false and leaves it to
// the caller to close it. The session exists once the launcher has said hello, and
// until the connection ends. A slot has at most one connection that has not said
// hello: a launcher cannot use up the descriptors of its node. Nor its threads: what
// a launcher sent is closed by its Closer, and as long as that has not come to an
// end the launcher is not let in again.
func (s *Sessions) Connect(slotID string, pod types.NamespacedName, conn *control.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	closer := s.closers[slotID]
	if closer == nil {
		closer = &control.Closer{}
	}
	if s.closed || s.greeting[slotID] || s.serving[slotID] == maxServing || !closer.Idle() {
		return false
	}
	s.closers[slotID] = closer
	s.greeting[slotID] = true
	s.serving[slotID]++
	s.wait.Add(1)
	go func() {
		defer s.wait.Done()
		defer s.served(slotID)
		s.serve(slotID, pod, conn, closer)
	}()
	return true
}

func (s *Sessions) served(slotID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.serving[slotID]--; s.serving[slotID] == 0 {
		delete(s.serving, slotID)
	}
	maps.DeleteFunc(s.closers, func(slot string, c *control.Closer) bool { return s.serving[slot] == 0 && c.Idle() })
}

func (s *Sessions) serve(slotID string, pod types.NamespacedName, conn *control.Conn, closer *control.Closer) {
	log := s.log.WithValues("pod", pod.String())
	launcher := &session{slot: slotID, since: time.Now(), pod: pod, events: rate.NewLimiter(eventRate, eventBurst), agentNews: make(chan struct{}, 1)}
	hello := make(chan error, 1)
	greeted := false
	ready := make(chan struct{}) // launcher.client is there
	launcher.client = control.NewClient(conn, control.Limits{Closer: closer, Decoding: s.decoding}, func(m *control.Message) {
		<-ready
		if !greeted {
			greeted = true
			// Here, not below: a state report may follow at once.
			hello <- launcher.greet(m)
			return
		}
		defer m.Close()
		s.event(launcher, m, log)
	})
	close(ready)
	defer launcher.close()
	if err := s.awaitHello(launcher, hello); err != nil {
		log.Info("refuse launcher", "reason", short(err.Error()))
		return
	}
	if !s.add(launcher) {
		log.Info("refuse a second launcher of a pod", "slot", slotID)
		return
	}
	log.Info("launcher connected", "state", launcher.State().State, "qemu", short(launcher.qemuVersion))
	s.changed(pod)
	var following sync.WaitGroup
	following.Go(func() { s.followAgent(launcher, log) })
	s.probe(launcher, log)
	following.Wait()
	log.Info("launcher disconnected", "reason", short(fmt.Sprint(launcher.client.Err())))
	if s.remove(launcher) {
		s.changed(pod)
	}
}

const (
	// probeInterval is between two questions to a launcher, which then asks
	// its QEMU: an idle VM wakes for this alone.
	probeInterval = 30 * time.Second
	// probePatience is how long a launcher may take to answer before it is
	// said to be silent. It answers within a millisecond where it gets CPU time.
	probePatience = 10 * time.Second
)

// probe asks the launcher now and then, until the connection ends. A question
// stays open until it is answered: no launcher is asked twice, and the answer
// tells at once that it is back.
func (s *Sessions) probe(launcher *session, log logr.Logger) {
	for s.pause(launcher, s.interval) {
		answered := make(chan error, 1)
		go func() {
			answered <- launcher.client.Call(context.Background(), control.CommandQueryState, nil, nil)
		}()
		patience := time.NewTimer(s.patience)
		select {
		case <-answered:
			patience.Stop()
			continue
		case <-patience.C:
		}
		log.Info("launcher does not answer", "since", s.patience.String())
		launcher.setSilent(true)
		s.changed(launcher.pod)
		// Also when the connection ends.
		err := <-answered
		launcher.setSilent(false)
		if err == nil {
			log.Info("launcher answers again")
			s.changed(launcher.pod)
		}
	}
}

// pause waits, and returns false once the launcher's connection has ended.
func (s *Sessions) pause(launcher *session, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-launcher.client.Done():
		return false
	}
}

// awaitHello waits for the launcher's first message to be taken.
func (s *Sessions) awaitHello(launcher *session, hello <-chan error) error {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.greeting, launcher.slot)
	}()
	timeout := time.NewTimer(helloTimeout)
	defer timeout.Stop()
	select {
	case err := <-hello:
		return err
	case <-launcher.client.Done():
		return launcher.client.Err()
	case <-s.closing:
		return control.ErrClosed
	case <-timeout.C:
		return fmt.Errorf("it did not say hello within %s", helloTimeout)
	}
}

// greet takes hello and the network namespace that came with it.
func (s *session) greet(m *control.Message) error {
	defer m.Close()
	var hello control.Hello
	if m.Event != control.EventHello || len(m.Files) != 1 { // of which kind and name, the client has seen to
		return fmt.Errorf("%w: the first message must be hello with its network namespace", control.ErrProtocol)
	}
	if err := s.client.Told(m.Data, &hello); err != nil {
		return err
	}
	switch {
	case hello.Version != control.Version:
		return fmt.Errorf("launcher speaks version %d of the control protocol, virt-handler %d", hello.Version, control.Version)
	case len(hello.Features) > maxFeatures:
		return fmt.Errorf("%w: %d features", control.ErrProtocol, len(hello.Features))
	case !plausible(hello.State):
		return fmt.Errorf("%w: a state %.32q that no launcher is in", control.ErrProtocol, hello.State.State)
	}
	if err := s.enter(m.Files[0].File); err != nil {
		return err
	}
	s.qemuVersion, s.features = hello.QEMUVersion, hello.Features
	s.setState(hello.State)
	return nil
}

// enter takes the pod's network namespace, and what is found in it.
func (s *session) enter(file *os.File) error {
	netns, err := netsetup.FromFile(file)
	if err != nil {
		return fmt.Errorf("take network namespace: %w", err)
	}
	s.inNetNS.Lock()
	s.netns = netns
	s.inNetNS.Unlock()
	facts, err := netsetup.ReadFacts(netns, podLink)
	if err != nil {
		return fmt.Errorf("read pod network: %w", err)
	}
	s.links = map[string]netsetup.Facts{podLink: facts}
	return nil
}

// maxFeatures is more than any launcher has.
const maxFeatures = 256

// maxDevices is more of a kind than any VMI has.
const maxDevices = 512

// plausible says whether a launcher may be in such a state. It is kept as long
// as the launcher is on the line: an empty device, of two bytes on the line,
// takes a hundred times as much here.
func plausible(state control.StateReport) bool {
	m := state.Machine
	return state.State.Known() && len(state.Jobs) <= control.MaxJobs && (m == nil || max(len(m.NICs), len(m.Disks), len(m.AHCI), len(m.RootPorts), len(m.Inputs), len(m.CPU.Flags)) <= maxDevices)
}

// podLink is the pod's interface, by the CRI's convention.
const podLink = "eth0"

func (s *Sessions) event(launcher *session, m *control.Message, log logr.Logger) {
	if m.Event == control.EventAgent {
		launcher.keepAgent(m.Data) // and followAgent does the rest
		return
	}
	// A launcher that reports without end waits here, and nobody else.
	delay := time.NewTimer(launcher.events.Reserve().Delay())
	defer delay.Stop()
	select {
	case <-delay.C:
	case <-s.closing:
		return
	}
	var state control.StateReport
	if m.Event != control.EventState {
		log.Info("unknown event from launcher", "event", m.Event)
		return
	}
	if err := launcher.client.Told(m.Data, &state); err != nil || !plausible(state) {
		log.Info("launcher reports a state that cannot be read")
		return
	}
	launcher.setState(state)
	s.changed(launcher.pod)
}

// add makes the session known. A launcher that dials again on its slot takes
// the place of its old connection; another slot may not.
func (s *Sessions) add(launcher *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.byPod[launcher.pod]
	if s.closed || old != nil && old.slot != launcher.slot {
		return false
	}
	if old != nil {
		go old.client.Close()
	}
	s.byPod[launcher.pod] = launcher
	delete(s.gone, launcher.pod)
	return true
}

// forgetGone is when it does not matter any more how long a launcher has been
// gone: nearly all of them have ended, and their VMIs with them.
const forgetGone = time.Hour

// remove returns whether the pod now has no launcher on the line.
func (s *Sessions) remove(launcher *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byPod[launcher.pod] != launcher {
		return false
	}
	delete(s.byPod, launcher.pod)
	maps.DeleteFunc(s.gone, func(_ types.NamespacedName, since time.Time) bool { return time.Since(since) > forgetGone })
	s.gone[launcher.pod] = time.Now()
	return !s.closed
}

// Gone is for how long the pod's launcher has not been on the line, as far as
// is known here.
func (s *Sessions) Gone(pod types.NamespacedName) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byPod[pod] != nil {
		return 0
	}
	since, ok := s.gone[pod]
	if !ok {
		since = s.opened
	}
	return time.Since(since)
}

// Close ends all sessions; the VMs go on.
func (s *Sessions) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.closing)
	}
	for _, launcher := range s.byPod {
		go launcher.client.Close()
	}
	s.mu.Unlock()
	s.wait.Wait()
}

// callTimeout bounds one question to a launcher.
const callTimeout = 30 * time.Second

// lacking is of a feature that a launcher does not have.
type lacking struct{ feature string }

func (e lacking) Error() string {
	return fmt.Sprintf("this pod's virt-launcher has no feature %q: its VM gets a newer one when it is started anew", e.feature)
}

// has says whether the launcher has what a command belongs to.
func (s *session) has(command string) error {
	if feature := control.FeatureOf(command); feature != "" && !slices.Contains(s.features, feature) {
		return lacking{feature}
	}
	return nil
}

func (s *session) call(ctx context.Context, command string, arguments, result any, files ...control.File) error {
	if err := s.has(command); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return s.client.Call(ctx, command, arguments, result, files...)
}

// stream is call for an answer that is a stream.
func (s *session) stream(ctx context.Context, command string) (*control.Stream, error) {
	if err := s.has(command); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return s.client.CallForStream(ctx, command)
}
