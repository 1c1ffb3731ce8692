package sessions

import (
	"context"
	"time"

	"github.com/go-logr/logr"

	"github.com/kubeqemu/kubeqemu/internal/timer"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

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
		// Also when the connection ends.
		err := <-answered
		launcher.setSilent(false)
		if err == nil {
			log.Info("launcher answers again")
			s.changed(launcher.Pod)
		}
	}
}
