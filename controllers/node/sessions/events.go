package sessions

import (
	"time"

	"github.com/go-logr/logr"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Bounds of a launcher's events. A launcher reports a handful of states in a VM's life.
const (
	eventRate  = 2 // a second
	eventBurst = 20
)

func (s *Set) event(launcher *Session, m *control.Message, log logr.Logger) {
	if m.Event == control.EventAgent {
		launcher.keepAgent(m.Data) // followAgent reads it
		return
	}
	// A launcher that reports without end waits here, and delays no other launcher.
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
	if err := launcher.Client.Told(m.Data, &state); err != nil || !Plausible(state) {
		log.Info("launcher reports a state that cannot be read")
		return
	}
	launcher.SetState(state)
	s.changed(launcher.Pod)
}
