package launcher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/launcher/link"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
)

// handle answers one message from the handler.
func (l *launcher) handle(ctx context.Context, m *link.Command) {
	defer m.Close()
	switch m.Execute {
	case control.CommandQueryState:
		l.queryState(ctx, m)
	case control.CommandInspect:
		l.inspect(ctx, m)
	case control.CommandStart:
		l.startRequested(ctx, m)
	case control.CommandReject:
		l.rejected(ctx, m)
	case control.CommandGrowDisk:
		l.growDisk(ctx, m)
	case control.CommandCancelJob:
		l.cancelJob(m)
	case control.CommandForgetJob:
		l.forgetJob(m)
	case control.CommandShutdown:
		m.Answer(nil, nil)
		l.hear(ctx, life.ShutdownAsked{At: time.Now()}, nil)
	case control.CommandPause, control.CommandUnpause, control.CommandReset, control.CommandSoftReboot:
		known := l.agent.Report()
		l.hear(ctx, life.OperationAsked{Operation: life.Operation(m.Execute), Agent: life.Agent{Connected: known.Connected, Frozen: known.Frozen}}, m)
	case control.CommandGrace:
		l.shortenGrace(ctx, m)
	case control.CommandConsole:
		l.handOutConsole(m)
	case control.CommandVNC:
		l.handOutVNC(ctx, m)
	case control.CommandGuestInfo, control.CommandUsers, control.CommandFileSystems, control.CommandFreeze, control.CommandUnfreeze:
		l.askAgent(ctx, m)
	case control.CommandScreenshot:
		l.handOutScreenshot(ctx, m)
	case control.CommandMovePointer:
		l.movePointer(ctx, m)
	case control.CommandStats:
		l.stats(ctx, m)
	default:
		m.Answer(nil, fmt.Errorf("unknown command %q", m.Execute))
	}
}

// busy counts what goes on beside the loop, by the command that it is for.
type busy map[string]int

// begin counts one more, unless that is more than may be.
func (b busy) begin(command string, most int) bool {
	if b[command] >= most {
		return false
	}
	b[command]++
	return true
}

func (b busy) end(command string) { b[command]-- }

// queryState answers what the state is, and has QEMU and the guest's agent asked
// what may be new: virt-handler's question brings this about, so that an idle VM
// is woken once for all.
func (l *launcher) queryState(ctx context.Context, m *link.Command) {
	m.Answer(l.report(), nil)
	l.hear(ctx, life.Probed{}, nil)
	l.agent.poll()
}

func (l *launcher) inspect(ctx context.Context, m *link.Command) {
	var request control.InspectRequest
	if err := control.Decode(m.Data, &request); err != nil {
		m.Answer(nil, err)
		return
	}
	if !l.busy.begin(m.Execute, 1) {
		m.Answer(nil, errors.New("still inspecting: a file system does not answer"))
		return
	}
	// A file system may hang; the loop must not.
	var reply control.InspectReply
	l.later(ctx, func() error {
		reply = inspect(l.Config, request)
		return nil
	}, func(error) {
		l.busy.end(m.Execute)
		m.Answer(reply, nil)
	})
}

// shortenGrace is answered alike whether or not it changes anything.
func (l *launcher) shortenGrace(ctx context.Context, m *link.Command) {
	var request control.GraceRequest
	err := control.Decode(m.Data, &request)
	if err == nil {
		l.hear(ctx, life.GraceShortened{Seconds: request.Seconds, At: time.Now()}, nil)
	}
	m.Answer(nil, err)
}

// guestError is what a user is told of an operation on the guest that failed.
func guestError(operation life.Operation, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, qmp.ErrClosed):
		err = errors.New("QEMU has ended")
	}
	return fmt.Errorf("%s the guest: %w", operation, err)
}

// handOutConsole answers with one end of a socket pair, whose other end is the
// console from now on.
func (l *launcher) handOutConsole(m *link.Command) {
	if l.serial == nil || l.life.HasEnded() {
		m.Answer(nil, fmt.Errorf("there is no serial console: the VM is %s", l.life.Shown()))
		return
	}
	ours, theirs, err := socketPair("console")
	if err != nil {
		m.Answer(nil, err)
		return
	}
	l.serial.Connect(ours)
	m.Answer(nil, nil, theirs)
}

// handOutVNC answers with a connection to QEMU's VNC server.
func (l *launcher) handOutVNC(ctx context.Context, m *link.Command) {
	if l.qemu == nil || l.life.HasEnded() || l.start.Machine.Graphics == nil {
		m.Answer(nil, fmt.Errorf("there is no graphics card to show: the VM is %s", l.life.Shown()))
		return
	}
	var file *os.File
	l.later(ctx, func() (err error) {
		file, err = dialFile(ctx, l.VNCSocket)
		return err
	}, func(err error) {
		if err != nil {
			m.Answer(nil, fmt.Errorf("connect to the VNC server: %w", err))
			return
		}
		m.Answer(nil, nil, file)
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
