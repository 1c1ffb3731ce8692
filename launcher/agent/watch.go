package agent

import (
	"context"
	"crypto/sha256"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/guestagent"
)

const (
	// After an agent has connected it is asked settlingPolls times, settlingInterval apart:
	// the guest's network comes up about then. After that the agent is asked when virt-handler
	// asks for the launcher's state.
	settlingPolls    = 6
	settlingInterval = 10 * time.Second
	// factsInterval is the time between two questions for facts that change with an upgrade.
	factsInterval = 10 * time.Minute
	// An agent that has the port open and does not answer, or that came and went within
	// lastRecall, is asked again after firstRecall, and then after twice as long each time, up
	// to lastRecall: a guest must not be able to cause a report every second.
	firstRecall = 5 * time.Second
	lastRecall  = time.Minute
	// maxInterfaces is how many of the guest's interfaces are reported, unless the machine has
	// more NICs; KubeVirt's bound.
	maxInterfaces = 10
)

// watch is what the agent's goroutine remembers from one step to the next.
type watch struct {
	*Agent
	seen      int       // the opening that was seen last
	connected bool      // the agent of that opening answers
	since     time.Time // when it first answered
	settling  int       // polls until the network should be up
	asked     time.Time // when the interfaces were asked for
	facts     time.Time // when everything was asked for
	recall    time.Duration
	failed    time.Time
	given     [sha256.Size]byte // digest of the accounts that the guest got, if it got all of them
	givenAt   time.Time
}

// step asks what is due, and returns the time until something is due again; 0 means when
// something changes.
func (w *watch) step(ctx context.Context) time.Duration {
	w.mu.Lock()
	open, opening, running, due := w.open, w.opening, w.running, w.due
	w.due = false
	w.mu.Unlock()
	if !open || opening != w.seen {
		fickle := w.connected && time.Since(w.since) < lastRecall
		w.lost("the port was closed")
		if fickle {
			w.backOff()
		}
		w.seen = opening
	}
	switch {
	case !open || !running:
		return 0
	case !w.connected:
		if wait := w.recall - time.Since(w.failed); w.recall > 0 && wait > 0 {
			return wait
		}
		err := w.connect(ctx)
		if err == nil {
			err = w.propagate(ctx)
		}
		if err != nil {
			return w.missed(ctx, err)
		}
	case due || w.settling > 0 && time.Since(w.asked) >= settlingInterval:
		err := w.refresh(ctx)
		if err != nil {
			err = w.client.Ping(ctx) // the agent may have been busy
		}
		if err == nil {
			err = w.propagate(ctx)
		}
		if err != nil {
			return w.missed(ctx, err)
		}
	}
	if w.settling > 0 {
		return max(settlingInterval-time.Since(w.asked), time.Millisecond)
	}
	return 0
}

// connect greets the agent and asks for everything.
func (w *watch) connect(ctx context.Context) error {
	if err := w.client.Desync(ctx); err != nil {
		return err
	}
	if err := w.client.Ping(ctx); err != nil {
		return err
	}
	w.connected, w.since, w.settling = true, time.Now(), settlingPolls
	w.given = [sha256.Size]byte{} // the guest may have started anew
	w.log.Info("guest agent connected")
	w.update(func(r *control.AgentReport) { r.Connected, w.met = true, true })
	return w.everything(ctx)
}

func (w *watch) everything(ctx context.Context) error {
	w.facts = time.Now()
	info, err := w.client.Info(ctx)
	if silent(err) {
		return err
	}
	system, err := w.client.OS(ctx)
	if silent(err) {
		return err
	}
	status, err := w.client.FreezeStatus(ctx)
	if silent(err) {
		return err
	}
	w.update(func(r *control.AgentReport) {
		r.Version, r.OS, r.Frozen = info.Version, system, status == guestagent.Frozen
	})
	return w.interfaces(ctx)
}

// refresh asks for facts that change by themselves.
func (w *watch) refresh(ctx context.Context) error {
	w.settling = max(w.settling-1, 0)
	switch {
	case w.Report().Frozen:
		w.asked = time.Now()
		return w.client.Ping(ctx) // the agent answers little else
	case time.Since(w.facts) >= factsInterval:
		return w.everything(ctx)
	}
	return w.interfaces(ctx)
}

func (w *watch) interfaces(ctx context.Context) error {
	w.asked = time.Now()
	found, err := w.client.Interfaces(ctx)
	if err == nil {
		w.update(func(r *control.AgentReport) { r.Interfaces = chosen(found, w.macs) })
	}
	if silent(err) {
		return err
	}
	return nil // the agent is there, even if it cannot say
}

// chosen returns the interfaces to be reported: the machine's own NICs first.
func chosen(found []control.GuestInterface, macs []string) []control.GuestInterface {
	var own, others []control.GuestInterface
	for _, i := range found {
		// A bridge in the guest may have a NIC's MAC too.
		if slices.Contains(macs, i.MAC) && !slices.ContainsFunc(own, func(o control.GuestInterface) bool { return o.MAC == i.MAC }) {
			own = append(own, i)
		} else {
			others = append(others, i)
		}
	}
	out := append(own, others...)
	return out[:min(len(out), max(len(own), maxInterfaces))]
}

// silent reports whether an error is that of an agent that does not answer. An agent that answers
// nonsense is there.
func silent(err error) bool {
	return errors.Is(err, guestagent.ErrSilent) || errors.Is(err, context.Canceled) || errors.Is(err, net.ErrClosed)
}

// missed notes that the agent did not answer, unless its guest was stopped
// meanwhile, and returns when to ask again.
func (w *watch) missed(ctx context.Context, err error) time.Duration {
	w.mu.Lock()
	excused := !w.running || !w.open || w.seen != w.opening
	w.mu.Unlock()
	if excused || ctx.Err() != nil {
		return time.Millisecond // the next step looks at what has changed first
	}
	w.lost(err.Error())
	w.backOff()
	return w.recall
}

// backOff leaves the agent alone for longer than the last time.
func (w *watch) backOff() {
	w.failed, w.recall = time.Now(), min(max(2*w.recall, firstRecall), lastRecall)
}

func (w *watch) lost(why string) {
	if !w.connected {
		return
	}
	w.connected = false
	if time.Since(w.since) >= lastRecall {
		w.recall = 0
	}
	w.log.Info("guest agent disconnected", "reason", why)
	w.update(func(r *control.AgentReport) {
		*r = control.AgentReport{Frozen: r.Frozen, Credentials: r.Credentials, PingsHeld: r.PingsHeld, PingFailed: r.PingFailed}
	})
}
