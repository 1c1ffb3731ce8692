package sessions

import (
	"context"
	"time"

	"github.com/go-logr/logr"

	"github.com/kubeqemu/kubeqemu/internal/timer"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

const (
	// probeInterval is the time between two questions to a launcher, which asks its QEMU in
	// turn. An idle VM wakes for nothing else.
	probeInterval = 30 * time.Second
	// probePatience is how long a launcher may take to answer before it counts as silent. With
	// CPU time it answers within a millisecond.
	probePatience = 10 * time.Second
)

// probe asks the launcher at intervals, until the connection ends. A question stays open until
// the launcher answers it: the launcher owes one answer at most, and a late answer shows at
// once that it is back.
func (s *Set) probe(launcher *Session, log logr.Logger) {
	for timer.Wait(s.interval, launcher.Client.Done()) {
		answered := make(chan error, 1)
		go func() {
			answered <- launcher.Client.Call(context.Background(), control.CommandQueryState, nil, nil)
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
		s.changed(launcher.Pod)
		// The call also returns when the connection ends.
		err := <-answered
		launcher.setSilent(false)
		if err == nil {
			log.Info("launcher answers again")
			s.changed(launcher.Pod)
		}
	}
}
