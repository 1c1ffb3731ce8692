package sessions

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/netsetup"
)

// Session is a connected launcher. Its slot has proven which pod the launcher is in; no
// message of the launcher changes that.
type Session struct {
	Slot   string
	PID    int       // of the process that dialed, or 0 where this process cannot see it
	Since  time.Time // when the launcher dialed
	Pod    types.NamespacedName
	Client *control.Client

	// greet sets these, and learn the Commands. They do not change later.
	QEMUVersion string
	knows       bool // all that this version's launcher does
	Commands    control.Commands

	// events bounds how often a launcher can make virt-handler work.
	events *rate.Limiter

	// agentNews holds a signal while agentSaid is set.
	agentNews chan struct{}

	mu    sync.Mutex
	state control.StateReport
	// news is closed at the next report; nil while nobody waits for it.
	news chan struct{}
	// agent is nil until the launcher has reported on the guest's agent. agentSaid is
	// the newest report that has not been read.
	agent     *control.AgentReport
	agentSaid json.RawMessage
	silent    bool
	// pingFailed is the last failed ping that NewPingFailure has returned, and pingSeen when
	// that was.
	pingFailed, pingSeen time.Time

	// checked is when NextCheck last said that a check is due.
	checked time.Time

	attempts map[string]Attempt // by wishes
	seenJob  uint64             // the last job whose result was seen
	// question is the last question about statistics.
	question *statsQuestion

	// inNetNS is held for reading by work in the namespace, so that close cannot
	// close the descriptor under that work. The kernel would give the descriptor's
	// number to another pod's namespace.
	inNetNS sync.RWMutex
	netns   ns.NetNS // nil before hello and after close

	linksMu sync.Mutex
	links   map[string]netsetup.Facts // those that were read, by name
}

// Link returns one of the pod's links as the CNI plugins left it. Plugins make links before the
// launcher runs, so a link is read once. Without the link, the error is netsetup.ErrNoLink.
func (s *Session) Link(name string) (netsetup.Facts, error) {
	s.linksMu.Lock()
	defer s.linksMu.Unlock()
	if facts, ok := s.links[name]; ok {
		return facts, nil
	}
	var facts netsetup.Facts
	err := s.Inside(func(netns ns.NetNS) (err error) {
		facts, err = netsetup.ReadFacts(netns, name)
		return err
	})
	if err != nil {
		return netsetup.Facts{}, fmt.Errorf("read pod network: %w", err)
	}
	s.take(facts)
	return facts, nil
}

// TakeLink notes the facts of a link that was read elsewhere.
func (s *Session) TakeLink(facts netsetup.Facts) {
	s.linksMu.Lock()
	defer s.linksMu.Unlock()
	s.take(facts)
}

func (s *Session) take(facts netsetup.Facts) {
	if s.links == nil {
		s.links = map[string]netsetup.Facts{}
	}
	s.links[facts.Link] = facts
}

// Inside runs work with the pod's network namespace, unless the session ended.
func (s *Session) Inside(work func(ns.NetNS) error) error {
	s.inNetNS.RLock()
	defer s.inNetNS.RUnlock()
	if s.netns == nil {
		return control.ErrClosed
	}
	return work(s.netns)
}

// State returns what the launcher reported last.
func (s *Session) State() control.StateReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// SetState takes a report of the launcher.
func (s *Session) SetState(state control.StateReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = state
	if s.news != nil {
		close(s.news)
		s.news = nil
	}
}

// Await waits until the launcher reports a state that is wanted, and returns that state. It fails when ctx or the
// session ends.
func (s *Session) Await(ctx context.Context, wanted func(control.StateReport) bool) (control.StateReport, error) {
	for {
		state, news := s.follow()
		if wanted(state) {
			return state, nil
		}
		select {
		case <-news:
		case <-s.Client.Done():
			return state, fmt.Errorf("%w: %w", control.ErrClosed, s.Client.Err())
		case <-ctx.Done():
			return state, context.Cause(ctx)
		}
	}
}

// follow returns the launcher's state, and a channel that is closed at the next report.
func (s *Session) follow() (control.StateReport, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.news == nil {
		s.news = make(chan struct{})
	}
	return s.state, s.news
}

// NextCheck returns how long it takes until the session is to be checked, at most once an interval. If it
// returns 0, the session counts as checked.
func (s *Session) NextCheck(now time.Time, interval time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.Since
	if s.checked.After(last) {
		last = s.checked
	}
	if wait := interval - now.Sub(last); wait > 0 {
		return wait
	}
	s.checked = now
	return 0
}

// Silent reports whether the launcher has owed an answer for longer than probePatience.
func (s *Session) Silent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.silent
}

// setSilent returns whether the value has changed.
func (s *Session) setSilent(silent bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	news := s.silent != silent
	s.silent = silent
	return news
}

func (s *Session) close() {
	s.Client.Close()
	s.inNetNS.Lock()
	defer s.inNetNS.Unlock()
	if s.netns != nil {
		s.netns.Close()
		s.netns = nil
	}
}

// Preparing reports whether the launcher's QEMU is still to come up.
func (s *Session) Preparing() bool {
	state := s.State().State
	return state == control.StateWaiting || state == control.StatePreparing
}

// callTimeout bounds one question to a launcher.
const callTimeout = 30 * time.Second

// LackingError names what a launcher does not know of a command: the command itself, or fields of its arguments.
type LackingError struct {
	Command string
	Fields  []string
}

// String returns such as `the command "pause"` or `"machine.sound" in the command "start"`.
func (e LackingError) String() string {
	var fields []string
	for _, f := range e.Fields {
		fields = append(fields, strconv.Quote(f))
	}
	if len(fields) == 0 {
		return fmt.Sprintf("the command %q", e.Command)
	}
	return fmt.Sprintf("%s in the command %q", strings.Join(fields, ", "), e.Command)
}

func (e LackingError) Error() string {
	return fmt.Sprintf("this pod's virt-launcher does not know %s: its VM gets a newer one when it is started anew", e.String())
}

// Takes returns a LackingError if the launcher does not know a command, or a field that the arguments set.
func (s *Session) Takes(command string, arguments any) error {
	if known, fields := s.Commands.Lack(command, arguments); !known || len(fields) > 0 {
		return LackingError{command, fields}
	}
	return nil
}

// Call asks the launcher a question, and waits callTimeout, 30 s, at most.
func (s *Session) Call(ctx context.Context, command string, arguments, result any, files ...control.File) error {
	if err := s.Takes(command, arguments); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return s.Client.Call(ctx, command, arguments, result, files...)
}

// Stream makes a call for an answer that is a stream.
func (s *Session) Stream(ctx context.Context, command string, arguments any) (*control.Stream, error) {
	if err := s.Takes(command, arguments); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return s.Client.CallForStream(ctx, command, arguments)
}
