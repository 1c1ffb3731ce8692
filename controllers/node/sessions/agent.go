package sessions

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"github.com/kubeqemu/kubeqemu/internal/timer"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Bounds of the lists of a report, which are more than any launcher tells.
const (
	maxReportedInterfaces = 64
	maxReportedAddresses  = 16
)

// agentInterval is the least time between two reports of a guest's agent that
// somebody is told of: each may be a write of the VMI's status, and the guest says
// how often there is something new.
const agentInterval = 2 * time.Second

// Agent is what the guest's agent said last; nil if the launcher has told nothing
// of it.
func (s *Session) Agent() *control.AgentReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.agent
}

// keepAgent keeps a report in place of the one before. It is for the goroutine
// that reads, and as quick as that must be.
func (s *Session) keepAgent(data json.RawMessage) {
	if len(data) > control.MaxAgentReport {
		data = nil // which is no report
	}
	s.mu.Lock()
	s.agentSaid = data
	s.mu.Unlock()
	select {
	case s.agentNews <- struct{}{}:
	default:
	}
}

// followAgent tells of what a guest's agent says, the newest of it and not too
// often, until the launcher's connection ends.
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

// takeAgent reads what was kept last, if it is a report.
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

// ReadAgent reads a report, if it is one, and within its bounds.
func (s *Session) ReadAgent(data json.RawMessage) (*control.AgentReport, bool) {
	var agent control.AgentReport
	if len(data) > control.MaxAgentReport || s.Client.Told(data, &agent) != nil || len(agent.Interfaces) > maxReportedInterfaces ||
		slices.ContainsFunc(agent.Interfaces, func(i control.GuestInterface) bool { return len(i.Addresses) > maxReportedAddresses }) {
		return nil, false
	}
	return &agent, true
}

// SetAgent takes a report; nil is a launcher that has told of no agent.
func (s *Session) SetAgent(agent *control.AgentReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.agent = agent
}
