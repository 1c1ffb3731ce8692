package launcher

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/launcher/link"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
)

// forever is longer than any VM lives.
const forever = time.Duration(math.MaxInt64)

// do carries out one action of package life. It must not wait.
func (l *launcher) do(ctx context.Context, a life.Action, asker *link.Command) {
	switch a := a.(type) {
	case life.Answer:
		asker.Answer(nil, refusal(a))
	case life.Kill:
		l.Log.Warn("kill QEMU", "reason", a.Why)
		l.qemu.Kill()
	case life.Operate:
		l.operate(ctx, a.Operation, asker)
	case life.Reboot:
		l.reboot(ctx, a.ByAgent, asker)
	case life.AskReason:
		l.askReason(ctx, a)
	case life.StartTimer:
		l.timers.start(a.Timer, a.After)
	case life.StopTimer:
		l.timers.stop(a.Timer)
	case life.AnswerSwitchover:
		l.moving.permit <- refusal(life.Answer(a))
	case life.TakeBack:
		l.takeBack(ctx, a)
	case life.HoldGuest:
		l.stopFor(ctx, a)
	case life.AnswerHold:
		l.holds.answer(a)
	case life.LetGo:
		l.letGo(ctx, a)
	case life.EndJob:
		l.endJob(a.Job)
	case life.RefuseRun:
		asker.Answer(control.RunReply{Refused: control.Cut(a.Why, control.MaxJobError)}, nil)
	default:
		l.doPlain(ctx, a, asker)
	}
}

// doPlain carries out one of the actions that need nothing but their name.
func (l *launcher) doPlain(ctx context.Context, a life.Action, asker *link.Command) {
	switch a {
	case life.Report:
		l.link.Report(l.report())
	case life.Prepare:
		l.prepare(ctx)
	case life.Abort:
		l.abort()
	case life.Exec:
		if err := l.exec(ctx); err != nil {
			l.abandon()
			l.hear(ctx, life.ExecFailed{Err: err}, nil)
		}
	case life.Press:
		l.ask(ctx, life.PressInterval, l.qmp.SystemPowerdown, l.warn("press power button"))
	case life.AskAgent:
		if l.agent.Agent != nil {
			l.ask(ctx, operateTimeout, l.agent.ShutDown, l.warn("have the guest agent shut the guest down"))
		}
	case life.TellQuit:
		l.ask(ctx, life.QuitTime, l.qmp.Quit, l.warn("quit QEMU"))
	case life.ForgetReboot:
		l.ask(ctx, operateTimeout, l.shutdownAction(qmp.ShutdownPoweroff), l.warn("end the wait for the guest's reboot"))
	case life.Restart:
		l.restart(ctx)
	case life.Continue:
		l.goOn(ctx)
	case life.Probe:
		l.probe(ctx)
	case life.Send:
		l.send(ctx, asker)
	case life.StopSending:
		l.moving.cancel()
	case life.Arrive:
		l.list().Arrive(ctx, l.start)
	case life.Run:
		l.runReceived(ctx, asker)
	case life.Keep:
		t := l.life.Termination()
		l.Log.Info("the VM has failed; the launcher is kept until it is asked to end",
			"reason", t.Reason, "message", t.Message)
	case life.End:
		t := l.life.Termination()
		l.Log.Info("end", "reason", t.Reason, "message", t.Message)
	}
}

func refusal(a life.Answer) error {
	if a.Refusal == "" {
		return nil
	}
	return errors.New(a.Refusal)
}

// ask runs a request to QEMU or to the guest's agent beside the loop, and hands the outcome to
// the loop. It drops an error that only says that QEMU has ended: the loop hears of QEMU's end
// itself.
func (l *launcher) ask(ctx context.Context, timeout time.Duration, do func(context.Context) error, done func(error)) {
	l.later(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return do(ctx)
	}, func(err error) {
		if !errors.Is(err, qmp.ErrClosed) {
			done(err)
		}
	})
}

// warn returns a function that logs an error.
func (l *launcher) warn(what string) func(error) {
	return func(err error) {
		if err != nil {
			l.Log.Warn(what, "error", err)
		}
	}
}

// operate carries out a user's request on a running guest, and answers when QEMU has done it.
// QEMU's events, not this answer, change the state.
func (l *launcher) operate(ctx context.Context, operation life.Operation, asker *link.Command) {
	do := map[life.Operation]func(context.Context) error{
		life.Pause: l.qmp.Stop, life.Unpause: l.qmp.Cont, life.Reset: l.qmp.SystemReset}[operation]
	l.forUser(ctx, operation, do, asker)
}

// reboot makes the guest reboot by its own means. By the power button, QEMU must first be told
// to keep a guest that powers off, so that restart can start it again.
func (l *launcher) reboot(ctx context.Context, byAgent bool, asker *link.Command) {
	if byAgent {
		l.forUser(ctx, life.SoftReboot, l.agent.Reboot, asker)
		return
	}
	keep, press := l.shutdownAction(qmp.ShutdownPause), l.qmp.SystemPowerdown
	l.forUser(ctx, life.SoftReboot, func(ctx context.Context) error {
		if err := keep(ctx); err != nil {
			return err
		}
		return press(ctx)
	}, asker)
}

func (l *launcher) forUser(ctx context.Context, operation life.Operation, do func(context.Context) error,
	asker *link.Command) {
	l.operating++
	l.later(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, operateTimeout)
		defer cancel()
		return do(ctx)
	}, func(err error) {
		l.operating--
		if err != nil {
			l.hear(ctx, life.OperationFailed{Operation: operation}, nil)
		}
		asker.Answer(nil, guestError(operation, err))
	})
}

// guestError returns the error that a user gets when an operation on the guest failed.
func guestError(operation life.Operation, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, qmp.ErrClosed):
		err = errors.New("QEMU has ended")
	}
	return fmt.Errorf("%s the guest: %w", operation, err)
}

// shutdownAction sets what QEMU does when the guest powers off.
func (l *launcher) shutdownAction(action string) func(context.Context) error {
	client := l.qmp
	return func(ctx context.Context) error { return client.SetShutdownAction(ctx, action) }
}

// restart starts a guest again that has powered off in order to reboot.
func (l *launcher) restart(ctx context.Context) {
	l.Log.Info("the guest has powered off, and is started again")
	client, off := l.qmp, l.shutdownAction(qmp.ShutdownPoweroff)
	l.ask(ctx, operateTimeout, func(ctx context.Context) error {
		return errors.Join(client.SystemReset(ctx), off(ctx), client.Cont(ctx))
	}, func(err error) {
		if err != nil {
			l.hear(ctx, life.RestartFailed{Err: err}, nil)
		}
	})
}

// goOn lets a guest run again that an I/O error stopped.
func (l *launcher) goOn(ctx context.Context) {
	l.Log.Info("try again what failed", "disk", l.life.Pause.Disk)
	l.ask(ctx, handshakeTimeout, l.qmp.Cont, func(err error) {
		if err != nil {
			l.Log.Warn("let the guest run again", "error", err)
			l.hear(ctx, life.ContinueFailed{}, nil)
		}
	})
}

// probe asks QEMU whether it answers. The question stays open however long QEMU takes, so the
// late answer itself says that QEMU is back.
func (l *launcher) probe(ctx context.Context) {
	client := l.qmp
	l.ask(ctx, forever, func(ctx context.Context) error {
		_, err := client.QueryStatus(ctx)
		return err
	}, func(error) { l.hear(ctx, life.ProbeAnswered{}, nil) })
}

// askReason asks QEMU in which run state it stopped the guest.
func (l *launcher) askReason(ctx context.Context, a life.AskReason) {
	client := l.qmp
	var status qmp.Status
	l.ask(ctx, handshakeTimeout, func(ctx context.Context) (err error) {
		status, err = client.QueryStatus(ctx)
		return err
	}, func(err error) {
		if err == nil {
			l.hear(ctx, life.ReasonTold{Pause: a.Pause, Status: status.Status, Running: status.Running}, nil)
		}
	})
}
