// Package sessions holds the launchers that are connected to virt-handler: the state that each
// launcher reports, and the calls to each.
package sessions

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Set holds the sessions of a node, by pod.
type Set struct {
	log logr.Logger
	// changed is called after every hello and report. It must not block.
	changed func(pod types.NamespacedName)

	mu    sync.Mutex
	byPod map[types.NamespacedName]*Session
	// greeting holds the slots with a connection that has not said hello.
	greeting map[string]bool
	// serving is how many connections of a slot are served.
	serving map[string]int
	// closers close the files that the launchers of slots have sent.
	closers map[string]*control.Closer
	// decoding bounds how many of launchers' messages are decoded at once.
	decoding control.Turns
	// gone is when the last connection of a pod's launcher ended.
	gone    map[types.NamespacedName]time.Time
	opened  time.Time
	closed  bool
	closing chan struct{}
	wait    sync.WaitGroup

	// interval and patience are probeInterval and probePatience, except in tests.
	interval, patience time.Duration
	// agentInterval is the constant agentInterval, except in tests.
	agentInterval time.Duration
}

// NewSet makes an empty set.
func NewSet(log logr.Logger, changed func(types.NamespacedName)) *Set {
	return &Set{log: log, changed: changed, byPod: map[types.NamespacedName]*Session{},
		greeting: map[string]bool{}, serving: map[string]int{}, closers: map[string]*control.Closer{}, decoding: control.NewTurns(maxDecoding), gone: map[types.NamespacedName]time.Time{}, opened: time.Now(),
		closing: make(chan struct{}), interval: probeInterval, patience: probePatience, agentInterval: agentInterval}
}

// Get returns the session of a pod that has said hello, or nil.
func (s *Set) Get(pod types.NamespacedName) *Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byPod[pod]
}

// Of returns the sessions of the pods that can be a VMI's by their names, in no order.
func (s *Set) Of(vmi types.NamespacedName) []*Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*Session
	for pod, launcher := range s.byPod {
		if pod.Namespace == vmi.Namespace && v1.VMIOfLauncherPod(pod.Name) == vmi.Name {
			all = append(all, launcher)
		}
	}
	return all
}

// Connected reports whether a slot has a connection, with or without a hello.
func (s *Set) Connected(slotID string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, launcher := range s.byPod {
		if launcher.Slot == slotID {
			return true
		}
	}
	return s.greeting[slotID]
}

// End ends the session of a slot. The guest goes on, and its launcher dials again.
func (s *Set) End(slotID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, launcher := range s.byPod {
		if launcher.Slot == slotID {
			go launcher.Client.Close() // see control.Closer for why this may take long
		}
	}
}

const (
	// maxServing bounds the connections of a slot: the launcher's present one, the previous
	// one while it ends, and one more.
	maxServing = 3
	// maxDecoding bounds the memory for messages of launchers that are decoded at the same
	// time.
	maxDecoding = 4
)

// Connect takes a new connection of a slot, or returns false and leaves the connection to the
// caller to close. The session exists from the launcher's hello until the connection ends.
//
// A launcher must not use up the node's file descriptors, so a slot has at most one connection
// without a hello. Nor may it use up the node's threads: a Closer closes the files that the
// launcher sent, and until that is done, no new connection of the slot is taken.
func (s *Set) Connect(slotID string, pod types.NamespacedName, conn *control.Conn) bool {
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

func (s *Set) served(slotID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.serving[slotID]--; s.serving[slotID] == 0 {
		delete(s.serving, slotID)
	}
	maps.DeleteFunc(s.closers, func(slot string, c *control.Closer) bool { return s.serving[slot] == 0 && c.Idle() })
}

func (s *Set) serve(slotID string, pod types.NamespacedName, conn *control.Conn, closer *control.Closer) {
	log := s.log.WithValues("pod", pod.String())
	launcher := &Session{Slot: slotID, PID: conn.PeerPID(), Since: time.Now(), Pod: pod, events: rate.NewLimiter(eventRate, eventBurst), agentNews: make(chan struct{}, 1)}
	hello := make(chan error, 1)
	greeted := false
	ready := make(chan struct{}) // closed once launcher.Client is set
	launcher.Client = control.NewClient(conn, control.Limits{Closer: closer, Decoding: s.decoding}, func(m *control.Message) {
		<-ready
		if !greeted {
			greeted = true
			// Taken here, in the order of the messages: a state report may follow at once.
			hello <- launcher.greet(m)
			return
		}
		defer m.Close()
		s.event(launcher, m, log)
	})
	close(ready)
	defer launcher.close()
	err := s.awaitHello(launcher, hello)
	if err == nil {
		err = launcher.learn(s.closing)
	}
	if err != nil {
		log.Info("refuse launcher", "reason", control.Short(err.Error()))
		return
	}
	if !s.Add(launcher) {
		log.Info("refuse a second launcher of a pod", "slot", slotID)
		return
	}
	log.Info("launcher connected", "state", launcher.State().State, "qemu", control.Short(launcher.QEMUVersion))
	s.changed(pod)
	var following sync.WaitGroup
	following.Go(func() { s.followAgent(launcher, log) })
	s.probe(launcher, log)
	following.Wait()
	log.Info("launcher disconnected", "reason", control.Short(fmt.Sprint(launcher.Client.Err())))
	if s.remove(launcher) {
		s.changed(pod)
	}
}

// Add makes the session known. A launcher that dials again on its slot takes
// the place of its old connection; another slot may not. The session has a Client,
// except in tests that end no session.
func (s *Set) Add(launcher *Session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.byPod[launcher.Pod]
	if s.closed || old != nil && old.Slot != launcher.Slot {
		return false
	}
	if old != nil {
		go old.Client.Close()
	}
	s.byPod[launcher.Pod] = launcher
	delete(s.gone, launcher.Pod)
	return true
}

// forgetGone is how long the set remembers when a pod's last connection ended. By then nearly
// all such launchers have ended, and their VMIs with them.
const forgetGone = time.Hour

// remove returns whether the pod now has no session.
func (s *Set) remove(launcher *Session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byPod[launcher.Pod] != launcher {
		return false
	}
	delete(s.byPod, launcher.Pod)
	maps.DeleteFunc(s.gone, func(_ types.NamespacedName, since time.Time) bool { return time.Since(since) > forgetGone })
	s.gone[launcher.Pod] = time.Now()
	return !s.closed
}

// Gone returns how long the pod has had no session. For a pod of which the set remembers no
// session, it returns the set's age.
func (s *Set) Gone(pod types.NamespacedName) time.Duration {
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
func (s *Set) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.closing)
	}
	for _, launcher := range s.byPod {
		go launcher.Client.Close()
	}
	s.mu.Unlock()
	s.wait.Wait()
}

// qemuVersion is the form of a version. Other texts of launchers are ignored.
var qemuVersion = regexp.MustCompile(`^[0-9]{1,3}(\.[0-9]{1,3}){1,2}$`)

// QEMUVersions lists the versions that the launchers report, each once.
func (s *Set) QEMUVersions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var versions []string
	for _, session := range s.byPod {
		if qemuVersion.MatchString(session.QEMUVersion) && !slices.Contains(versions, session.QEMUVersion) {
			versions = append(versions, session.QEMUVersion)
		}
	}
	slices.Sort(versions)
	return versions
}
