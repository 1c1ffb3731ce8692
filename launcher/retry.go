package launcher

import (
	"context"
	"errors"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
)

// Storage that failed is tried again after firstRetry, and then after twice as
// long each time, up to lastRetry. An attempt has succeeded when the guest has
// run for settleTime: one whose storage still fails stops again at once, and
// would otherwise seem to run now and then.
const (
	firstRetry = 5 * time.Second
	lastRetry  = time.Minute
	settleTime = 3 * time.Second
)

// retry is of a guest that QEMU stopped for an I/O error: its requests are kept,
// and made again when its CPUs run.
type retry struct {
	timer   *time.Timer // until the next attempt
	settled *time.Timer // until the attempt has succeeded
	wait    time.Duration
	trying  bool // the guest runs on trial; its state is still that it is paused
}

func (r *retry) schedule() {
	r.trying = false
	r.settled.Stop()
	r.wait = min(max(2*r.wait, firstRetry), lastRetry)
	r.timer.Reset(r.wait)
}

func (r *retry) stop() {
	r.trying, r.wait = false, 0
	r.timer.Stop()
	r.settled.Stop()
}

// retryIO lets a guest that was stopped for an I/O error, and for nothing else,
// run again. Also one that is to shut down: with its disk back it can.
func (l *launcher) retryIO(ctx context.Context) {
	if l.asked || l.kept != nil || l.state.Pause == nil || l.state.Pause.Status != control.PausedIOError {
		return
	}
	l.Log.Info("try again what failed", "disk", l.state.Pause.Disk)
	l.retry.trying, l.ioError = true, nil
	client := l.qmp
	l.later(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
		defer cancel()
		return client.Cont(ctx)
	}, func(err error) {
		if err != nil && !errors.Is(err, qmp.ErrClosed) {
			l.Log.Warn("let the guest run again", "error", err)
			l.retry.schedule()
		}
	})
}

// settled says that the guest runs again.
func (l *launcher) settled() {
	l.retry.stop()
	l.resumed()
}
