package launcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/life"
)

// holds are the jobs that wait for the guest to stand, by their numbers. The loop owns them.
type holds map[uint64]chan<- error

// answer gives a job the answer whether the guest stands.
func (h holds) answer(a life.AnswerHold) {
	if asker := h[a.Job]; asker != nil {
		asker <- refusal(life.Answer{Refusal: a.Refusal})
	}
	delete(h, a.Job)
}

// hold makes the guest stand for a job that runs beside the loop, and waits until the guest stands. Everybody else sees
// a guest that runs. The guest runs on after over, or after the bound: then the job is canceled. ctx is the launcher's,
// and working the job's.
func (l *launcher) hold(ctx, working context.Context, job uint64, bound time.Duration) (over func(), err error) {
	answer := make(chan error, 1)
	over = func() {
		l.hand(ctx, func() {
			delete(l.holds, job)
			l.hear(ctx, life.HoldOver{Job: job}, nil)
		})
	}
	l.hand(ctx, func() {
		if l.holds[job] != nil {
			answer <- errors.New("the job waits already")
			return
		}
		l.holds[job] = answer
		l.hear(ctx, life.HoldAsked{Job: job, Bound: bound, Busy: l.operating > 0}, nil)
	})
	select {
	case err = <-answer:
	case <-working.Done():
		over()
		err = context.Cause(working)
	}
	if err != nil {
		return nil, fmt.Errorf("hold the guest: %w", err)
	}
	return over, nil
}

// stopFor makes QEMU stop the guest for a job. QEMU's event STOP says that the guest stands.
func (l *launcher) stopFor(ctx context.Context, a life.HoldGuest) {
	l.withQEMU(ctx, l.qmp.Stop, func(err error) {
		if err != nil {
			l.hear(ctx, life.HoldFailed{Job: a.Job, Err: err}, nil)
		}
	})
}

// letGo makes QEMU let the guest run on that stood for a job.
func (l *launcher) letGo(ctx context.Context, a life.LetGo) {
	l.withQEMU(ctx, l.qmp.Cont, func(err error) {
		if err != nil {
			l.Log.Warn("let the guest run on after a job", "job", a.Job, "error", err)
		}
		l.hear(ctx, life.LetGoAnswered{Job: a.Job, Err: err}, nil)
	})
}

// withQEMU asks QEMU for something beside the loop, and hands the outcome to the loop.
func (l *launcher) withQEMU(ctx context.Context, do func(context.Context) error, done func(error)) {
	l.later(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, operateTimeout)
		defer cancel()
		return do(ctx)
	}, done)
}
