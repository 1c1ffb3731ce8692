package agent

import (
	"context"
	"errors"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/guestagent"
)

// thawAgain is the time between two attempts to thaw a guest.
const thawAgain = 5 * time.Second

// Freeze makes the guest hold its writes until somebody thaws it, or for timeout; 0 is for
// ever. A guest that is frozen already gets the new timeout.
func (a *Agent) Freeze(ctx context.Context, timeout time.Duration) error {
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
			// The guest may be frozen without anybody knowing, and nobody would thaw it.
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

// thawIn and neverThaw need freezing to be held.
func (a *Agent) thawIn(wait time.Duration) {
	a.thawAt = time.Now().Add(wait)
	a.thawer.Reset(wait)
}

func (a *Agent) neverThaw() {
	a.thawAt = time.Time{}
	a.thawer.Stop()
}

func (a *Agent) setHalting(halting bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.halting = halting
}

// Thaw lets the guest write.
func (a *Agent) Thaw(ctx context.Context) error {
	a.freezing.Lock()
	defer a.freezing.Unlock()
	return a.thawNow(ctx)
}

// thawNow needs freezing to be held.
func (a *Agent) thawNow(ctx context.Context) error {
	if err := a.client.Thaw(ctx); err != nil {
		return err
	}
	a.neverThaw()
	a.update(func(r *control.AgentReport) { r.Frozen = false })
	return nil
}

// thawInTime thaws a guest that nobody has thawed in time. It does not give up: until the
// guest is thawed nothing in it can write.
func (a *Agent) thawInTime(ctx context.Context) {
	for {
		select {
		case <-a.thawer.C:
		case <-ctx.Done():
			return
		}
		a.thawDue(ctx)
	}
}

// thawDue thaws a guest whose time is over. A guest that was frozen again meanwhile has a
// new time.
func (a *Agent) thawDue(ctx context.Context) {
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

// ShutDown makes the agent shut the guest down, beside the power button: a guest may heed only
// the agent, or only the button. A frozen guest is thawed first; it could not shut down.
func (a *Agent) ShutDown(ctx context.Context) error {
	known := a.Report()
	if known.Frozen {
		if err := a.Thaw(ctx); err != nil {
			return err
		}
	}
	if !known.Connected {
		return nil
	}
	return a.client.Shutdown(ctx)
}
