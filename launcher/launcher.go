// Package launcher is PID 1 of a VM's pod: it starts QEMU, drives it over QMP,
// and ends when QEMU has ended. It holds no Kubernetes code and no credential.
//
// One goroutine owns all state and waits for whatever comes first: a signal, a
// message from virt-handler, an event from QEMU, QEMU's exit, a timer. The
// others only read or write one thing each and hand the result to it.
package launcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"time"

	monitor "github.com/digitalocean/go-qemu/qmp"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/layout"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/netsetup/dhcp"
)

// Config says where things are. The zero value of each path means the one in
// package layout.
type Config struct {
	QEMU, QEMUImg string
	SlotSocket    string
	ConsoleSocket string
	VNCSocket     string
	AgentSocket   string
	ImageDir      string
	OverlayDir    string
	KernelDir     string
	SecretDir     string
	ClaimDir      string
	BlockDir      string
	ResolvConf    string
	// DiskPatience is how long a start waits for a disk that another QEMU, or
	// something else on the node, still has: of one whose pod was deleted by
	// force the QEMU has its last seconds. 0: not at all.
	DiskPatience time.Duration
	// Stdout gets what the guest writes to its serial port; QEMU's own
	// messages go to Stderr.
	Stdout, Stderr *os.File
	Log            *slog.Logger
	// Signals that ask for shutdown.
	Signals <-chan os.Signal
}

func (c *Config) defaults() {
	for _, d := range []struct {
		value *string
		path  string
	}{
		{&c.QEMU, layout.QEMU}, {&c.QEMUImg, layout.QEMUImg}, {&c.SlotSocket, layout.SlotSocket},
		{&c.ConsoleSocket, layout.ConsoleSocket}, {&c.VNCSocket, layout.VNCSocket}, {&c.AgentSocket, layout.AgentSocket}, {&c.ImageDir, layout.ImageVolumeDir},
		{&c.OverlayDir, layout.OverlayDir}, {&c.KernelDir, layout.KernelDir}, {&c.SecretDir, layout.SecretDir},
		{&c.ClaimDir, layout.ClaimDir}, {&c.BlockDir, layout.BlockDir}, {&c.ResolvConf, "/etc/resolv.conf"},
	} {
		if *d.value == "" {
			*d.value = d.path
		}
	}
}

const (
	// handshakeTimeout bounds the time from exec to running. A loaded node
	// may take seconds to read QEMU from disk.
	handshakeTimeout = 60 * time.Second
	// pressInterval: a guest whose ACPI driver is not up yet misses the power
	// button, so it is pressed again until the guest is down.
	pressInterval = 5 * time.Second
	// quitTimeout is how long QEMU has to follow "quit" before it is killed.
	quitTimeout = 5 * time.Second
	// stderrBytesPerSecond and stderrBurst cap what of QEMU's messages goes to
	// the pod's log. It says little; a guest can make it warn without end.
	stderrBytesPerSecond = 4 << 10
	stderrBurst          = 128 << 10
	// drainTimeout bounds the wait for QEMU's last events after its exit.
	drainTimeout = time.Second
)

// launcher is the state that the loop owns.
type launcher struct {
	Config
	state  control.StateReport
	slot   *slot
	serial *serial
	agent  *agent       // nil without its port
	probes *agentSocket // nil if it could not be made
	stderr *podLog      // QEMU's messages, on their way to the pod's log
	leases []*dhcp.Server

	start      *control.StartRequest
	files      map[string]*os.File // of the start request, by name, until QEMU has them
	disks      map[string]*os.File // images in volumes, likewise
	abort      context.CancelFunc  // ends the preparation and the handshake
	inspecting bool

	qemu    *qemuProcess
	qmp     *qmp.Client
	events  <-chan monitor.Event
	exited  <-chan exit
	results chan func() // what other goroutines hand to the loop

	stopping bool
	aborted  bool // asked to stop before the guest ran
	asked    bool // quit came from here
	press    *time.Timer
	pressed  time.Time // when the grace period began
	grace    *time.Timer
	kill     *time.Timer
	startErr error        // why the guest could not be let run
	lost     error        // how QEMU's monitor ended
	gaveUp   error        // the same, if QEMU was killed for it
	last     qmp.Shutdown // the last SHUTDOWN event
	panicked bool

	probing  bool        // QEMU owes an answer to probe
	patience *time.Timer // for that answer
	ioError  *ioError    // that the guest's CPUs are being stopped for
	retry    retry       // of what failed
	growing  bool        // a disk is being made larger
	counting bool        // statistics are being read
	source   statsSource // of which only who reads them knows the threads

	asking     int         // questions to the guest's agent
	rebooting  bool        // the guest's next power-off is to be a reboot
	rebootOver *time.Timer // then it no longer is
	restarting bool        // it has powered off to be started again, and does not run yet
	notAgain   error       // why it could not be started again
	picturing  bool        // a screenshot is being taken, or read

	kept *control.Termination // how a VM ended whose launcher is kept
	end  *control.Termination
}

// Run runs one VM and returns how it ended. The calling goroutine is locked to
// its thread until then: QEMU gets a parent-death signal, which is tied to the
// thread that made it.
func Run(ctx context.Context, config Config) control.Termination {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	config.defaults()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := &launcher{
		Config:  config,
		state:   control.StateReport{State: control.StateWaiting},
		results: make(chan func()),
		press:   stoppedTimer(), grace: stoppedTimer(), kill: stoppedTimer(), patience: stoppedTimer(), rebootOver: stoppedTimer(),
		retry: retry{timer: stoppedTimer(), settled: stoppedTimer()},
	}
	defer l.close()
	var err error
	if l.probes, err = listenForProbes(config.AgentSocket, config.Log); err != nil {
		config.Log.Warn("probes are not answered", "error", err)
	}
	version, err := l.askVersion(ctx)
	switch {
	case errors.Is(err, errStopped):
		return control.Termination{Reason: control.ReasonNeverStarted, Message: err.Error()}
	case err != nil:
		return control.Termination{Reason: control.ReasonStartFailed, Message: err.Error()}
	}
	l.slot = newSlot(config.SlotSocket, version, l.state, config.Log)
	for l.end == nil {
		l.step(ctx)
	}
	return *l.end
}

var errStopped = errors.New("asked to end before the launcher was ready")

// askVersion asks QEMU for its version, unless the launcher is asked to end meanwhile.
func (l *launcher) askVersion(ctx context.Context) (version string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		version, err = qemuVersion(ctx, l.QEMU)
	}()
	select {
	case <-asked:
		return version, err
	case <-l.Signals:
		cancel()
		<-asked
		return "", errStopped
	}
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// step waits for one thing and carries it out.
func (l *launcher) step(ctx context.Context) {
	select {
	case <-ctx.Done():
		l.killQEMU(ctx, "the launcher is being ended")
	case s := <-l.Signals:
		l.Log.Info("signal", "signal", s.String())
		l.shutdown(ctx)
	case m := <-l.slot.messages:
		l.handle(ctx, m)
	case result := <-l.results:
		result()
	case e, ok := <-l.events:
		if !ok {
			// QEMU closes its monitor when it exits. One that lives on
			// without cannot be driven, nor asked to stop.
			l.events, l.lost = nil, l.qmp.Err()
			l.kill.Reset(quitTimeout)
			return
		}
		l.event(ctx, e)
	case e := <-l.exited:
		l.drainEvents(ctx)
		l.finish(l.termination(e))
	case <-l.press.C:
		l.pressPowerButton()
	case <-l.grace.C:
		l.quit()
	case <-l.retry.timer.C:
		l.retryIO(ctx)
	case <-l.retry.settled.C:
		l.settled()
	case <-l.patience.C:
		l.setSilent(true)
	case <-l.rebootOver.C:
		l.endReboot(ctx)
	case <-l.kill.C:
		l.gaveUp = l.lost
		l.killQEMU(ctx, "QEMU did not exit by itself")
	}
}

// later runs work on a goroutine of its own and then done on the loop.
func (l *launcher) later(ctx context.Context, work func() error, done func(error)) {
	go func() {
		err := work()
		select {
		case l.results <- func() { done(err) }:
		case <-ctx.Done():
		}
	}()
}

func (l *launcher) setState(s control.State) {
	if l.state.State == s {
		return
	}
	l.state.State = s
	l.agent.setRunning(s == control.StateRunning || s == control.StateShuttingDown)
	if s == control.StateExited {
		l.agent.end()
	}
	l.Log.Info("state", "state", s)
	l.slot.report(l.state)
}

func (l *launcher) finish(t control.Termination) {
	if l.start != nil && l.start.KeepLauncher && !t.Succeeded() && !l.stopping {
		l.keep(t)
		return
	}
	l.end = &t
	l.setState(control.StateExited)
	l.Log.Info("end", "reason", t.Reason, "message", t.Message)
}

// keep notes how the VM ended and waits to be asked to end too.
func (l *launcher) keep(t control.Termination) {
	l.kept = &t
	l.exited, l.events = nil, nil
	l.kill.Stop()
	l.retry.stop()
	l.state.Failure = fmt.Sprintf("%s: %s", t.Reason, t.Message)
	l.setState(control.StateExited)
	l.Log.Info("the VM has failed; the launcher is kept until it is asked to end", "reason", t.Reason, "message", t.Message)
}

func (l *launcher) close() {
	if l.abort != nil {
		l.abort()
	}
	for _, s := range l.leases {
		s.Close()
	}
	if l.qmp != nil {
		l.qmp.Close()
	}
	if l.serial != nil {
		l.serial.Close()
	}
	if l.probes != nil {
		l.probes.Close()
	}
	if l.agent != nil {
		l.agent.Close()
	}
	if l.stderr != nil {
		l.stderr.Close()
	}
	closeAll(l.files)
	closeAll(l.disks)
	if l.slot != nil {
		l.slot.Close()
	}
}

// handle answers one message from the handler.
func (l *launcher) handle(ctx context.Context, m *message) {
	defer m.Close()
	switch m.Execute {
	case control.CommandQueryState:
		m.answer(l.state, nil)
		l.probe(ctx)
		l.agent.poll()
	case control.CommandInspect:
		var request control.InspectRequest
		if err := control.Decode(m.Data, &request); err != nil {
			m.answer(nil, err)
			return
		}
		if l.inspecting {
			m.answer(nil, errors.New("still inspecting: a file system does not answer"))
			break
		}
		// A file system may hang; the loop must not.
		l.inspecting = true
		var reply control.InspectReply
		l.later(ctx, func() error {
			reply = inspect(l.Config, request)
			return nil
		}, func(error) {
			l.inspecting = false
			m.answer(reply, nil)
		})
	case control.CommandStart:
		m.answer(nil, l.startRequested(ctx, m))
	case control.CommandReject:
		m.answer(nil, l.rejected(m))
	case control.CommandGrowDisk:
		l.growDisk(ctx, m)
	case control.CommandShutdown:
		m.answer(nil, nil)
		l.shutdown(ctx)
	case control.CommandPause, control.CommandUnpause, control.CommandReset:
		l.operate(ctx, m)
	case control.CommandGrace:
		m.answer(nil, l.shortenGrace(m))
	case control.CommandConsole:
		l.handOutConsole(m)
	case control.CommandVNC:
		l.handOutVNC(ctx, m)
	case control.CommandGuestInfo, control.CommandUsers, control.CommandFileSystems, control.CommandFreeze, control.CommandUnfreeze:
		l.askAgent(ctx, m)
	case control.CommandSoftReboot:
		l.softReboot(ctx, m)
	case control.CommandScreenshot:
		l.handOutScreenshot(ctx, m)
	case control.CommandMovePointer:
		l.movePointer(ctx, m)
	case control.CommandStats:
		l.stats(ctx, m)
	default:
		m.answer(nil, fmt.Errorf("unknown command %q", m.Execute))
	}
}

func (l *launcher) event(ctx context.Context, e monitor.Event) {
	switch e.Event {
	case "BLOCK_IO_ERROR":
		if failed := parseIOError(e, &l.start.Machine); failed != nil {
			l.ioError = failed
		}
	case "VSERPORT_CHANGE":
		l.agent.portChanged(e)
	case "SHUTDOWN":
		if l.last.Guest {
			return // it is off; what ends QEMU then says nothing of the guest
		}
		l.last = qmp.ParseShutdown(e)
		if l.rebooting && l.last.Guest {
			l.rebootNow(ctx)
		}
	case "GUEST_PANICKED":
		l.panicked = true
	case "STOP":
		// A guest that flushes its disks in order to shut down may need them again.
		flushing := l.state.State == control.StateShuttingDown && l.ioError != nil
		if l.last.Guest {
			l.off()
			return
		}
		if l.state.State == control.StateRunning || l.retry.trying || flushing {
			l.paused(ctx)
		}
	case "RESUME":
		if l.restarting {
			l.restarting, l.last = false, qmp.Shutdown{}
		}
		l.ran()
		l.resumed()
	}
}

// drainEvents takes the events that QEMU sent before it exited: SHUTDOWN is
// among them, and says why.
func (l *launcher) drainEvents(ctx context.Context) {
	timeout := time.NewTimer(drainTimeout)
	defer timeout.Stop()
	for l.events != nil {
		select {
		case e, ok := <-l.events:
			if !ok {
				return
			}
			l.event(ctx, e)
		case <-timeout.C:
			return
		}
	}
}
