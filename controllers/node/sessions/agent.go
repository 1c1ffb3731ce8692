package sessions

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"github.com/kubeqemu/kubeqemu/internal/timer"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Bounds of a report's lists, which are longer than those of any honest launcher.
const (
	maxReportedInterfaces = 64
	maxReportedAddresses  = 16
)

// agentInterval is the least time between two reports of a guest's agent that the set passes
// on. Each may cost a write of the VMI's status, and the guest decides how often it reports.
const agentInterval = 2 * time.Second

// Agent returns the newest report of the guest's agent, or nil if the launcher has sent none.
func (s *Session) Agent() *control.AgentReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.agent
}

// keepAgent keeps a report in place of the one before. The goroutine that reads from the
// launcher calls it, so it must not block.
func (s *Session) keepAgent(data json.RawMessage) {
	if len(data) > control.MaxAgentReport {
		data = nil // nil is not a readable report
	}
	s.mu.Lock()
	s.agentSaid = data
	s.mu.Unlock()
	select {
	case s.agentNews <- struct{}{}:
	default:
	}
}

// followAgent passes on the newest report of a guest's agent, at most once per agentInterval,
// until the launcher's connection ends.
func (s *Set) followAgent(launcher *Session, log logr.Logger) {
	for {
		select {
		case <-launcher.agentNews:
		case <-launcher.Client.Done():
			return
		}
		if launcher.takeAgent() {
			s.changed(launcher.Pod)
		} else {
			log.Info("launcher reports what cannot be read of the guest agent")
		}
		if !timer.Wait(s.agentInterval, launcher.Client.Done()) {
			return
		}
	}
}

// takeAgent reads the newest kept report. It returns false for an unreadable one.
func (s *Session) takeAgent() bool {
	s.mu.Lock()
	data := s.agentSaid
	s.agentSaid = nil
	s.mu.Unlock()
	agent, ok := s.ReadAgent(data)
	if ok {
		s.SetAgent(agent)
	}
	return ok
}

// ReadAgent reads a report. It returns false if the text is no report, or exceeds a bound.
func (s *Session) ReadAgent(data json.RawMessage) (*control.AgentReport, bool) {
	var agent control.AgentReport
	if len(data) > control.MaxAgentReport || s.Client.Told(data, &agent) != nil || len(agent.Interfaces) > maxReportedInterfaces ||
		slices.ContainsFunc(agent.Interfaces, func(i control.GuestInterface) bool { return len(i.Addresses) > maxReportedAddresses }) {
		return nil, false
	}
	return &agent, true
}

// SetAgent takes a report; nil means that the launcher has sent none.
func (s *Session) SetAgent(agent *control.AgentReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.agent = agent
}

// pingInterval is the least time between two failed pings that NewPingFailure returns. An older
// failed ping than that was seen by the virt-handler before.
const pingInterval = time.Minute

// NewPingFailure reports whether the launcher reports a failed ping of the guest's agent that is new. A launcher may
// report any time, as often as it likes.
func (s *Session) NewPingFailure(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.agent == nil || s.agent.PingFailed.IsZero() || s.agent.PingFailed.Equal(s.pingFailed) ||
		now.Sub(s.agent.PingFailed).Abs() >= pingInterval || now.Sub(s.pingSeen).Abs() < pingInterval/2 {
		return false
	}
	s.pingFailed, s.pingSeen = s.agent.PingFailed, now
	return true
}
