// Package migration moves a running guest from one QEMU to another: Source has a QEMU send its
// guest, and Target has a QEMU receive the guest. Neither listens on a network. QEMU gets
// descriptors, and whoever is at the other ends of these carries the bytes.
//
// The order of the commands is that of QEMU's docs/devel/migration (main.rst, features.rst) and
// of docs/interop/live-block-operations.rst.
package migration

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/qmp"
)

// stateFD is the name by which QEMU knows the descriptor that carries the guest's state.
const stateFD = "migration"

// capabilities returns those that source and target both need.
func capabilities() map[string]bool {
	return map[string]bool{qmp.CapabilityEvents: true, qmp.CapabilityReturnPath: true, qmp.CapabilityPause: true, qmp.CapabilityLateActivate: true}
}

const (
	// commandTimeout bounds a command to QEMU. QEMU's main loop may wait for storage.
	commandTimeout = 60 * time.Second
	// lookInterval is the time between two looks at a QEMU that sends no event. Only progress and
	// timeouts depend on it.
	lookInterval = time.Second
)

// watcher looks at QEMU whenever something may have changed.
type watcher struct {
	// changed gets a value after QEMU has sent an event. An event says only that it is time to
	// look: QEMU's answers alone say how far the migration is, so that no lost event matters.
	changed <-chan struct{}
	tick    *time.Ticker
	told    time.Time // when progress was told last
	// postCopyDue goes along with the progress.
	postCopyDue bool
}

func watch(changed <-chan struct{}) *watcher {
	return &watcher{changed: changed, tick: time.NewTicker(lookInterval)}
}

// until calls look now, and whenever something may have changed, until look is done or fails.
func (w *watcher) until(ctx context.Context, look func() (done bool, err error)) error {
	for {
		if done, err := look(); done || err != nil {
			return err
		}
		select {
		case <-w.changed:
		case <-w.tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *watcher) stop() { w.tick.Stop() }

// tell tells progress once in lookInterval at most.
func (w *watcher) tell(to func(Progress), p Progress) {
	if now := time.Now(); now.Sub(w.told) >= lookInterval {
		w.told = now
		to(p)
	}
}

// ErrNoReturn is the error of a guest whose memory no longer follows it, in post-copy. The source's QEMU cannot
// run the guest again, and the target's QEMU has not all of its memory.
var ErrNoReturn = errors.New("the guest's memory did not follow it to the target")

// errFailed is the error of a migration for which QEMU gives no reason.
var errFailed = errors.New("QEMU gives no reason")

// failure returns why a migration has failed or was cancelled, or nil if it goes on.
func failure(m qmp.Migration) error {
	switch {
	case m.Status != qmp.MigrationFailed && m.Status != qmp.MigrationCancelled:
		return nil
	case m.Error != "":
		return errors.New(m.Error)
	case m.Status == qmp.MigrationCancelled:
		return context.Canceled
	}
	return errFailed
}

// broken returns ErrNoReturn if a guest's memory cannot follow it any more. trails says whether it did before.
func broken(m qmp.Migration, trails bool) error {
	switch {
	case m.Status == qmp.MigrationPostCopyPaused:
		return fmt.Errorf("%w: the channel between the nodes has ended", ErrNoReturn)
	case trails && failure(m) != nil:
		return ErrNoReturn
	}
	return nil
}

// unanswered is how many questions in a row QEMU may leave without an answer once nobody can help it any more. That is
// a minute: a QEMU that has the whole guest may also wait for its storage, and from here the two look the same.
const unanswered = 6

// answerTimeout is how long one of these questions waits. QEMU answers within milliseconds, unless its main loop waits.
const answerTimeout = 10 * time.Second

// errSilent is the error of a QEMU that has left so many.
var errSilent = errors.New("the channel between the nodes has ended, and QEMU does not answer")

// insist asks QEMU until it answers, or ends. A QEMU that does not answer in time may do later what it was told: its
// main loop may wait for storage, or for a page of the guest's memory. lost says whether such a page never comes.
func insist[T any](ctx context.Context, client *qmp.Client, lost func() bool, question func(context.Context) (T, error)) (T, error) {
	for silent := 0; ; {
		asked, stop := context.WithTimeout(ctx, min(answerTimeout, client.Timeout()))
		answer, err := question(asked)
		stop()
		if ctx.Err() != nil || client.Err() != nil || !errors.Is(err, qmp.ErrTimeout) {
			return answer, err
		}
		if lost() {
			silent++
		}
		if silent == unanswered {
			return answer, errSilent
		}
	}
}

// never returns the channel of a source, which needs nothing from its target in order to answer.
func never() bool { return false }

// command runs a command to QEMU within commandTimeout, whatever becomes of ctx: QEMU may carry
// out a command for which nobody waits any more.
func command(ctx context.Context, what string, run func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandTimeout)
	defer cancel()
	if err := run(ctx); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
