package launcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// startRequested takes a start request; the start itself goes on without the handler.
func (l *launcher) startRequested(ctx context.Context, m *message) error {
	if l.state.State != control.StateWaiting || l.stopping {
		return fmt.Errorf("cannot start: the VM is %s", l.state.State)
	}
	var request control.StartRequest
	if err := control.Decode(m.Data, &request); err != nil {
		return err
	}
	files, err := startFiles(m, &request)
	if err != nil {
		return err
	}
	l.start, l.files, m.Files = &request, files, nil
	l.state.Machine = &request.Machine
	l.setState(control.StatePreparing)
	var starting context.Context
	starting, l.abort = context.WithCancel(ctx)
	var disks map[string]*os.File
	l.later(ctx, func() (err error) {
		disks, err = prepare(starting, l.Config, &request)
		return err
	}, func(err error) {
		l.disks = disks
		l.prepared(ctx, starting, err)
	})
	return nil
}

// rejected ends a VM that virt-handler found no way to start. The launcher
// says so in its termination message: the terminal phase has one writer.
func (l *launcher) rejected(m *message) error {
	if l.state.State != control.StateWaiting {
		return fmt.Errorf("cannot reject: the VM is %s", l.state.State)
	}
	var why control.Termination
	if err := control.Decode(m.Data, &why); err != nil {
		return err
	}
	l.finish(control.Termination{Reason: control.ReasonStartFailed, Message: why.Message})
	return nil
}

// startFiles are the files of a start request, by name.
func startFiles(m *message, request *control.StartRequest) (map[string]*os.File, error) {
	var names []string
	for _, i := range request.Machine.Inherits() {
		if i.Kind == qemuargs.InheritedTap {
			names = append(names, i.String())
		}
	}
	for _, d := range request.DHCP {
		names = append(names, control.DHCPFile(d.NIC))
	}
	if len(m.Files) != len(names) {
		return nil, fmt.Errorf("start came with %d files, the machine needs %d", len(m.Files), len(names))
	}
	files := map[string]*os.File{}
	for i, name := range names {
		files[name] = m.Files[i]
	}
	return files, nil
}

func (l *launcher) prepared(ctx, starting context.Context, err error) {
	switch {
	case l.aborted:
		l.finish(control.Termination{Reason: control.ReasonNeverStarted, Message: "asked to end before QEMU was started"})
		return
	case err != nil:
		l.finish(control.Termination{Reason: control.ReasonStartFailed, Message: err.Error()})
		return
	}
	if err := l.exec(ctx, starting); err != nil {
		l.finish(control.Termination{Reason: control.ReasonStartFailed, Message: err.Error()})
	}
}

// exec starts QEMU and, beside the loop, shakes hands and lets the guest run.
func (l *launcher) exec(ctx, starting context.Context) error {
	if err := l.serveDHCP(); err != nil {
		return err
	}
	l.stderr = newPodLog(l.Stderr, "messages of QEMU", stderrBytesPerSecond, stderrBurst, l.Log)
	maps.Copy(l.files, l.disks) // their names differ
	l.disks = nil
	q, err := startQEMU(l.QEMU, &l.start.Machine, l.files, l.stderr)
	if err != nil {
		return err
	}
	l.source.taps = tapNames(&l.start.Machine, l.files)
	// QEMU has its own copies now. Were the taps and disks still open here,
	// they would outlive it.
	closeAll(l.files)
	l.qemu, l.exited, l.files = q, q.exited, nil
	l.state.QEMUPID = q.PID()
	if q.serial != nil {
		var podLog io.Writer = l.Stdout
		if l.start.NoSerialLog {
			podLog = io.Discard
		}
		if l.serial, err = newSerial(q.serial, l.ConsoleSocket, podLog, l.Log); err != nil {
			q.end()
			return err
		}
	}
	if err := l.followAgent(q.agent); err != nil {
		q.end()
		return err
	}
	// QEMU opens disks, which storage may delay, before it answers anything.
	l.qmp = qmp.New(q.qmp, qmp.Options{Logger: l.Log, Timeout: handshakeTimeout})
	if l.events, err = l.qmp.Events(ctx); err != nil {
		q.end()
		return fmt.Errorf("subscribe to QEMU's events: %w", err)
	}
	client, paused := l.qmp, l.start.Paused
	l.later(ctx, func() error { return handshake(starting, client, paused) }, l.started)
	return nil
}

// followAgent has probes ask the guest's agent from now on. Without its port
// nobody is there to be asked.
func (l *launcher) followAgent(port *net.UnixConn) (err error) {
	switch {
	case port == nil && l.probes != nil:
		l.probes.Close()
		return nil
	case port == nil:
		return nil
	case l.probes == nil: // it could not be made, and now matters
		if l.probes, err = listenForProbes(l.AgentSocket, l.Log); err != nil {
			return err
		}
	}
	l.agent = newAgent(port, &l.start.Machine, credentials{l.SecretDir, l.start.AgentCredentials}, l.slot.reportAgent, l.Log)
	l.probes.agent.Store(l.agent)
	return nil
}

// handshake connects and, unless the guest is to start paused, lets it run.
func handshake(ctx context.Context, client *qmp.Client, paused bool) error {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if err := client.Connect(); err != nil {
		return fmt.Errorf("connect to QEMU: %w", err)
	}
	if paused {
		return nil
	}
	if err := client.Cont(ctx); err != nil {
		return fmt.Errorf("run the guest: %w", err)
	}
	return nil
}

func (l *launcher) started(err error) {
	if err != nil {
		// QEMU's exit says more than a broken connection: it is on its way.
		if !errors.Is(err, qmp.ErrClosed) {
			l.startErr = err
			l.qemu.Kill()
		}
		return
	}
	if l.start.Paused && l.state.StartedAt == nil {
		l.state.Pause = &control.Pause{Status: control.PausedByUser}
		l.setState(control.StatePaused)
		return
	}
	l.ran()
}

// ran notes that the guest's CPUs run: QEMU's RESUME event says it first, and
// what follows it, a STOP or the end, must not be taken for an earlier state.
func (l *launcher) ran() {
	if l.state.StartedAt != nil {
		return
	}
	now := time.Now()
	l.state.StartedAt = &now
	l.setState(control.StateRunning)
}
