package launcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
)

// rebootPatience is how long a guest has to power off after the power button
// for that to be taken for the reboot that was asked for.
const rebootPatience = 3 * time.Minute

// softReboot has the guest start anew by its own means: through its agent, or by
// the power button, and then QEMU is told to start it again.
func (l *launcher) softReboot(ctx context.Context, m *message) {
	if err := l.operable(m.Execute); err != nil {
		m.answer(nil, err)
		return
	}
	known := l.agent.Report()
	byAgent := known.Connected
	switch {
	case known.Frozen:
		m.answer(nil, errors.New("cannot soft-reboot: the guest's file systems are frozen"))
		return
	case l.state.State == control.StatePaused:
		m.answer(nil, errors.New("cannot soft-reboot: the VM is paused"))
		return
	case !byAgent && l.start.Machine.NoACPI:
		m.answer(nil, errors.New("cannot soft-reboot: neither is the guest agent connected nor has the guest ACPI"))
		return
	}
	if !byAgent {
		l.rebooting = true
		l.rebootOver.Reset(rebootPatience)
	}
	client, agent := l.qmp, l.agent
	l.later(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, operateTimeout)
		defer cancel()
		if byAgent {
			return agent.client.Reboot(ctx)
		}
		if err := client.SetShutdownAction(ctx, qmp.ShutdownPause); err != nil {
			return err
		}
		return client.SystemPowerdown(ctx)
	}, func(err error) {
		if err != nil {
			l.endReboot(ctx)
			err = fmt.Errorf("soft-reboot the guest: %w", err)
		}
		m.answer(nil, err)
	})
}

// rebootNow starts a guest again that has powered off in order to be.
func (l *launcher) rebootNow(ctx context.Context) {
	l.Log.Info("the guest has powered off, and is started again")
	l.rebooting, l.restarting = false, true // until it runs
	l.rebootOver.Stop()
	client := l.qmp
	l.later(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, operateTimeout)
		defer cancel()
		return errors.Join(client.SystemReset(ctx), client.SetShutdownAction(ctx, qmp.ShutdownPoweroff), client.Cont(ctx))
	}, func(err error) {
		if err != nil && !errors.Is(err, qmp.ErrClosed) {
			// It is off; there is nothing left to lose.
			l.notAgain = err
			l.quit()
		}
	})
}

// off: QEMU holds a guest that has powered off. If it is not to start again, it did
// so as its reboot was given up, before QEMU had heard of that.
func (l *launcher) off() {
	if !l.restarting && !l.asked {
		l.quit()
	}
}

// endReboot has the guest's next power-off be one.
func (l *launcher) endReboot(ctx context.Context) {
	if !l.rebooting {
		return
	}
	l.rebooting = false
	l.rebootOver.Stop()
	client := l.qmp
	l.later(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, operateTimeout)
		defer cancel()
		return client.SetShutdownAction(ctx, qmp.ShutdownPoweroff)
	}, func(err error) {
		if err != nil && !errors.Is(err, qmp.ErrClosed) {
			l.Log.Warn("end the wait for the guest's reboot", "error", err)
		}
	})
}
