package launcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/guestagent"
	"github.com/kubeqemu/kubeqemu/launcher/link"
)

const (
	// maxAsking is how many questions wait for a guest's agent.
	maxAsking = 8
	// askingAgent is what they are counted as.
	askingAgent = "guest agent"
	// thawAgain is between two attempts to thaw a guest whose agent did not.
	thawAgain = 5 * time.Second
)

var errNoAgent = errors.New("the guest agent is not connected")

// askAgent carries out a command about the guest's agent, beside the loop, and
// answers with what it returns.
func (l *launcher) askAgent(ctx context.Context, m *link.Command) {
	do, err := l.agentCommand(m)
	if err == nil {
		err = l.askable(m.Execute)
	}
	if err != nil {
		m.Answer(nil, err)
		return
	}
	var result any
	l.later(ctx, func() (err error) {
		ctx, cancel := context.WithTimeout(ctx, operateTimeout)
		defer cancel()
		result, err = do(ctx)
		return err
	}, func(err error) {
		l.busy.end(askingAgent)
		m.Answer(result, err)
	})
}

func (l *launcher) askable(command string) error {
	switch {
	case l.agent == nil || l.life.HasEnded() || !l.agent.Report().Connected:
		return errNoAgent
	case l.life.Shown() == control.StatePaused:
		return fmt.Errorf("cannot ask for %s: the VM is paused", command)
	case !l.busy.begin(askingAgent, maxAsking):
		return errors.New("the guest agent has much to answer already")
	}
	return nil
}

// agentCommand is what a message asks for.
func (l *launcher) agentCommand(m *link.Command) (func(context.Context) (any, error), error) {
	a := l.agent
	switch m.Execute {
	case control.CommandGuestInfo:
		return func(ctx context.Context) (any, error) { return a.info(ctx) }, nil
	case control.CommandUsers:
		return func(ctx context.Context) (any, error) {
			users, err := a.client.Users(ctx)
			return control.GuestUsers{Items: users}, err
		}, nil
	case control.CommandFileSystems:
		return func(ctx context.Context) (any, error) {
			systems, err := a.client.FileSystems(ctx)
			return control.GuestFileSystems{Items: systems}, err
		}, nil
	case control.CommandFreeze:
		var request control.FreezeRequest
		if err := control.Decode(m.Data, &request); err != nil {
			return nil, err
		}
		if request.TimeoutSeconds < 0 || request.TimeoutSeconds > int64(forever/time.Second) {
			return nil, fmt.Errorf("freeze: %d seconds are no time", request.TimeoutSeconds)
		}
		return func(ctx context.Context) (any, error) {
			return nil, a.freeze(ctx, time.Duration(request.TimeoutSeconds)*time.Second)
		}, nil
	case control.CommandUnfreeze:
		return func(ctx context.Context) (any, error) { return nil, a.thaw(ctx) }, nil
	}
	return nil, fmt.Errorf("unknown command %q", m.Execute)
}

// info is all that the agent says. What it does not know, or does not tell while
// the file systems are frozen, is left out.
func (a *agent) info(ctx context.Context) (control.GuestInfo, error) {
	var i control.GuestInfo
	known := a.Report()
	for _, ask := range []func() error{
		func() (err error) { i.AgentInfo, err = a.client.Info(ctx); return err },
		func() (err error) { i.FreezeStatus, err = a.client.FreezeStatus(ctx); return err },
		func() (err error) { i.Hostname, err = a.client.Hostname(ctx); return err },
		func() (err error) { i.OS, err = a.client.OS(ctx); return err },
		func() (err error) { i.Timezone, err = a.client.Timezone(ctx); return err },
		func() (err error) { i.Users, err = a.client.Users(ctx); return err },
		func() (err error) { i.FSInfo.FileSystems, err = a.client.FileSystems(ctx); return err },
	} {
		if err := ask(); silent(err) {
			return i, err
		}
	}
	if i.OS == (control.GuestOS{}) {
		i.OS = known.OS
	}
	if i.FreezeStatus == guestagent.Thawed {
		i.FreezeStatus = "" // as KubeVirt has it
	}
	return i, nil
}

// freeze has the guest hold its writes, for as long as timeout says if nobody
// thaws it before; 0 is for ever. One that is frozen already gets the new time.
func (a *agent) freeze(ctx context.Context, timeout time.Duration) error {
	a.freezing.Lock()
	defer a.freezing.Unlock()
	status, err := a.client.FreezeStatus(ctx)
	if err != nil {
		return err
	}
	if status != guestagent.Frozen {
		a.setHalting(true)
		defer a.setHalting(false)
		sent, err := a.client.Freeze(ctx)
		var said *guestagent.Error
		switch {
		case errors.As(err, &said), !sent:
			return err
		case err != nil:
			// Nobody will thaw what nobody knows to be frozen.
			a.thawIn(time.Millisecond)
			a.update(func(r *control.AgentReport) { r.Frozen = true })
			return err
		}
	}
	a.update(func(r *control.AgentReport) { r.Frozen = true })
	a.neverThaw()
	if timeout > 0 {
		a.thawIn(timeout)
	}
	return nil
}

// thawIn and neverThaw are for who holds freezing.
func (a *agent) thawIn(wait time.Duration) {
	a.thawAt = time.Now().Add(wait)
	a.thawer.Reset(wait)
}

func (a *agent) neverThaw() {
	a.thawAt = time.Time{}
	a.thawer.Stop()
}

func (a *agent) setHalting(halting bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.halting = halting
}

// thaw lets the guest write.
func (a *agent) thaw(ctx context.Context) error {
	a.freezing.Lock()
	defer a.freezing.Unlock()
	return a.thawNow(ctx)
}

// thawNow is for who holds freezing.
func (a *agent) thawNow(ctx context.Context) error {
	if err := a.client.Thaw(ctx); err != nil {
		return err
	}
	a.neverThaw()
	a.update(func(r *control.AgentReport) { r.Frozen = false })
	return nil
}

// thawInTime thaws a guest that nobody has thawed in time, and does not give up:
// until then nothing in it can write.
func (a *agent) thawInTime(ctx context.Context) {
	for {
		select {
		case <-a.thawer.C:
		case <-ctx.Done():
			return
		}
		a.thawDue(ctx)
	}
}

// thawDue thaws a guest whose time is over. Who froze it again meanwhile has
// given it another.
func (a *agent) thawDue(ctx context.Context) {
	a.freezing.Lock()
	defer a.freezing.Unlock()
	if a.thawAt.IsZero() || time.Now().Before(a.thawAt) {
		return
	}
	if !a.answerable() {
		a.thawIn(thawAgain) // until there is an agent again
		return
	}
	err := a.thawNow(ctx)
	if err == nil {
		a.log.Info("thawed the guest's file systems: the time to freeze them was over")
		return
	}
	if ctx.Err() == nil {
		a.log.Warn("thaw the guest's file systems", "error", err)
		a.thawIn(thawAgain)
	}
}

// shutDown has the agent shut the guest down, beside the power button: each may
// be the only one that the guest heeds. What is frozen could not.
func (a *agent) shutDown(ctx context.Context) error {
	known := a.Report()
	if known.Frozen {
		if err := a.thaw(ctx); err != nil {
			return err
		}
	}
	if !known.Connected {
		return nil
	}
	return a.client.Shutdown(ctx)
}
