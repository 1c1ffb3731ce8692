package launcher

import (
	"context"
	"fmt"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/agent"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/link"
)

// hasAgent returns why the guest's agent cannot be asked now, or nil.
func (l *launcher) hasAgent(command string) error {
	switch {
	case l.agent.Agent == nil || l.life.HasEnded() || !l.agent.Report().Connected:
		return agent.ErrNotConnected
	case l.life.Shown() == control.StatePaused:
		return fmt.Errorf("cannot ask for %s: the VM is paused", command)
	}
	return nil
}

// hasAgentPort returns why there is no port of a guest agent now, or nil.
func (l *launcher) hasAgentPort(command string) error {
	if l.agent.Agent == nil || l.life.HasEnded() {
		return fmt.Errorf("%s: the VM is %s, and has no port of a guest agent", command, l.life.Shown())
	}
	return nil
}

// holdPings lets virt-handler say whether pings of the guest's agent are held. It needs no connected agent: while
// the agent is away, its pings are held.
func (l *launcher) holdPings(_ context.Context, m *link.Command) {
	var request control.HoldPingsRequest
	err := control.Decode(m.Data, &request)
	if err == nil {
		l.agent.HoldPings(request.Hold)
	}
	m.Answer(nil, err)
}

func (l *launcher) guestInfo(*link.Command) (work, error) { return result(l.agent.Info), nil }

func (l *launcher) guestUsers(*link.Command) (work, error) { return result(l.agent.Users), nil }

func (l *launcher) guestFileSystems(*link.Command) (work, error) {
	return result(l.agent.FileSystems), nil
}

func (l *launcher) freeze(m *link.Command) (work, error) {
	var request control.FreezeRequest
	if err := control.Decode(m.Data, &request); err != nil {
		return nil, err
	}
	if request.TimeoutSeconds < 0 || request.TimeoutSeconds > int64(forever/time.Second) {
		return nil, fmt.Errorf("freeze: %d seconds are no time", request.TimeoutSeconds)
	}
	timeout, following := time.Duration(request.TimeoutSeconds)*time.Second, l.agent.Agent
	return outcome(func(ctx context.Context) error { return following.Freeze(ctx, timeout) }), nil
}

func (l *launcher) unfreeze(*link.Command) (work, error) { return outcome(l.agent.Thaw), nil }
