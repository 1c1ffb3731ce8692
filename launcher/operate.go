package launcher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
)

// operateTimeout bounds one command to QEMU that a user waits for.
const operateTimeout = 20 * time.Second

// operate carries out what a user asks of a running guest, and answers when
// QEMU has done it. What the state becomes, QEMU's events say.
func (l *launcher) operate(ctx context.Context, m *message) {
	if err := l.operable(m.Execute); err != nil {
		m.answer(nil, err)
		return
	}
	client, command := l.qmp, m.Execute
	do := map[string]func(context.Context) error{control.CommandPause: client.Stop, control.CommandUnpause: client.Cont, control.CommandReset: client.SystemReset}[command]
	if command == control.CommandUnpause {
		if l.retry.trying {
			m.answer(nil, nil) // it runs, on trial
			return
		}
		l.retry.timer.Stop()
	}
	l.later(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, operateTimeout)
		defer cancel()
		return do(ctx)
	}, func(err error) {
		if errors.Is(err, qmp.ErrClosed) {
			err = errors.New("QEMU has ended")
		}
		if err != nil {
			err = fmt.Errorf("%s the guest: %w", command, err)
		}
		if err != nil && l.state.Pause != nil && l.state.Pause.Status == control.PausedIOError {
			l.retry.schedule()
		}
		m.answer(nil, err)
	})
}

// operable says why a command cannot be carried out now.
func (l *launcher) operable(command string) error {
	running, paused := l.state.State == control.StateRunning, l.state.State == control.StatePaused
	switch {
	case l.kept != nil || l.asked || l.stopping || !running && !paused:
		return fmt.Errorf("cannot %s: the VM is %s", command, l.state.State)
	case l.restarting:
		return fmt.Errorf("cannot %s: the guest has powered off and is being started again", command)
	case command == control.CommandPause && paused:
		return errors.New("cannot pause: the VM is paused already")
	case command == control.CommandUnpause && running:
		return errors.New("cannot unpause: the VM is not paused")
	}
	return nil
}

// shortenGrace gives the guest less time to shut down, from the power button on,
// also where that was pressed already.
func (l *launcher) shortenGrace(m *message) error {
	var request control.GraceRequest
	if err := control.Decode(m.Data, &request); err != nil {
		return err
	}
	if l.start == nil || l.kept != nil || request.Seconds < 0 || request.Seconds >= l.start.GraceSeconds {
		return nil
	}
	l.start.GraceSeconds = request.Seconds
	if l.state.State != control.StateShuttingDown || l.asked {
		return nil
	}
	if left := time.Until(l.pressed.Add(time.Duration(request.Seconds) * time.Second)); left > 0 {
		l.grace.Reset(left)
	} else {
		l.quit()
	}
	return nil
}

// handOutConsole answers with one end of a socket pair, whose other end is the
// console from now on.
func (l *launcher) handOutConsole(m *message) {
	if l.serial == nil || l.kept != nil {
		m.answer(nil, fmt.Errorf("there is no serial console: the VM is %s", l.state.State))
		return
	}
	ours, theirs, err := socketPair("console")
	if err != nil {
		m.answer(nil, err)
		return
	}
	l.serial.connect(ours)
	m.answer(nil, nil, theirs)
}

// handOutVNC answers with a connection to QEMU's VNC server.
func (l *launcher) handOutVNC(ctx context.Context, m *message) {
	if l.qemu == nil || l.kept != nil || l.start.Machine.Graphics == nil {
		m.answer(nil, fmt.Errorf("there is no graphics card to show: the VM is %s", l.state.State))
		return
	}
	var file *os.File
	l.later(ctx, func() (err error) {
		file, err = dialFile(ctx, l.VNCSocket)
		return err
	}, func(err error) {
		if err != nil {
			m.answer(nil, fmt.Errorf("connect to the VNC server: %w", err))
			return
		}
		m.answer(nil, nil, file)
	})
}

// dialFile connects to a socket of QEMU's.
func dialFile(ctx context.Context, socket string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, operateTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.(*net.UnixConn).File()
}
