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

// capabilities are those that source and target both need.
func capabilities() []string {
	return []string{qmp.CapabilityEvents, qmp.CapabilityReturnPath, qmp.CapabilityPause, qmp.CapabilityLateActivate}
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

// errFailed is the error of a migration for which QEMU gives no reason.
var errFailed = errors.New("QEMU gives no reason")

// failure is why a migration has failed or was cancelled, or nil if it goes on.
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
