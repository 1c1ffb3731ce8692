// Package launcher is PID 1 of a VM's pod: it starts QEMU, drives QEMU over QMP, and ends when
// QEMU has ended. It holds no Kubernetes code and no credential.
//
// One goroutine, the loop, owns all state. It waits for whatever comes first: a signal, a
// message from virt-handler, an event from QEMU, QEMU's exit, a timer. Each other goroutine
// reads or writes one thing and hands its result to the loop. The loop decides nothing:
// package life decides what follows from an event.
package launcher

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"runtime"
	"time"

	monitor "github.com/digitalocean/go-qemu/qmp"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/disks"
	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/launcher/link"
	"github.com/kubeqemu/kubeqemu/launcher/pinning"
	"github.com/kubeqemu/kubeqemu/launcher/podlog"
	"github.com/kubeqemu/kubeqemu/launcher/process"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/launcher/stats"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// Config holds paths, streams and limits. An empty path means the path in package layout, or
// /etc/resolv.conf.
type Config struct {
	QEMU string
	// TPM is swtpm, which emulates TPMs.
	TPM string
	// QEMUVersion is a file that holds QEMU's version. Without the file the launcher runs QEMU
	// to learn the version, which takes as much CPU time as a third of a start.
	QEMUVersion   string
	SlotSocket    string
	ConsoleSocket string
	VNCSocket     string
	AgentSocket   string
	ResolvConf    string
	disks.Folders
	// DiskPatience is how long a start waits for a disk that another process on the node still
	// uses: when a pod was deleted by force, its QEMU lives on for seconds. 0: no wait.
	DiskPatience time.Duration
	// HostCPUs are the CPUs that the launcher may run on. Nil: as the kernel says.
	HostCPUs func() ([]pinning.CPU, error)
	// PID is the process whose threads make room for a guest with dedicated CPUs: the launcher's own. 0: none does,
	// because the process is not the launcher's alone.
	PID int
	// Stdout gets what the guest writes to its serial port; QEMU's own
	// messages go to Stderr.
	Stdout, Stderr *os.File
	// Console, if set, is the first client of the serial port: it gets all that the guest
	// writes, and is closed when QEMU has ended.
	Console net.Conn
	Log     *slog.Logger
	// Signals that ask for shutdown.
	Signals <-chan os.Signal
}

func (c *Config) defaults() {
	if c.QEMUVersion == "" && (c.QEMU == "" || c.QEMU == layout.QEMU) {
		c.QEMUVersion = layout.QEMUVersion // the file describes no other QEMU
	}
	for _, d := range []struct {
		value *string
		path  string
	}{
		{&c.QEMU, layout.QEMU}, {&c.TPM, layout.SWTPM}, {&c.SlotSocket, layout.SlotSocket},
		{&c.ConsoleSocket, layout.ConsoleSocket}, {&c.VNCSocket, layout.VNCSocket}, {&c.AgentSocket, layout.AgentSocket},
		{&c.ResolvConf, "/etc/resolv.conf"},
	} {
		if *d.value == "" {
			*d.value = d.path
		}
	}
	c.Folders.Default()
}

const (
	// handshakeTimeout bounds the time from QEMU's exec until the guest runs. A loaded node
	// may take seconds to read QEMU from disk.
	handshakeTimeout = 60 * time.Second
	// hugePagesPerGiB is how much longer the handshake may take for each GiB of huge pages.
	hugePagesPerGiB = 10 * time.Second
	// drainTimeout bounds the wait for QEMU's last events after its exit.
	drainTimeout = time.Second
)

// launcher is what the loop owns: the state of the VM's life, and the VM's resources.
type launcher struct {
	Config
	life   life.State
	timers timers

	link   *link.Link
	stderr *podlog.Log // passes QEMU's messages on to the pod's log

	start *control.StartRequest
	files map[string]*os.File // of the start, by name, until QEMU has them
	abort context.CancelFunc  // ends the preparation or the handshake

	vmParts

	cpus     *pinning.Plan // nil for a guest that shares its CPUs
	qemu     *process.QEMU
	qmp      *qmp.Client
	events   <-chan monitor.Event
	received int // how many of QEMU's events the loop has heard
	exited   <-chan life.Exit
	canceled <-chan struct{} // closed when the launcher is to end; nil once the loop has seen that
	results  chan func()     // work that other goroutines hand to the loop

	busy busy
	// operating is how many requests for the guest QEMU has not answered.
	operating int
	// linking: QEMU has not answered yet to a change of a link.
	linking bool
	sets    qemuargs.Sets // descriptor sets that QEMU has
	awaited awaited
	looks   disks.Looks
	jobs    jobs
	holds   holds
	source  *stats.Source // nil until QEMU was started
	moving  moving
}

// Run runs one VM and returns how it ended. The calling goroutine stays locked to its thread
// until then: QEMU's parent-death signal is tied to the thread that started QEMU.
func Run(ctx context.Context, config Config) control.Termination {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return newLauncher(ctx, config).run(ctx)
}

func newLauncher(ctx context.Context, config Config) *launcher {
	config.defaults()
	l := &launcher{Config: config, results: make(chan func()), canceled: ctx.Done(), busy: busy{}, holds: holds{},
		timers: newTimers()}
	l.vmParts = l.newParts(ctx)
	return l
}

// run runs the VM and returns how it ended.
func (l *launcher) run(ctx context.Context) control.Termination {
	err := l.live(ctx)
	failed := l.close()
	switch {
	case errors.Is(err, errStopped):
		return control.Termination{Reason: control.ReasonNeverStarted, Message: err.Error()}
	case err != nil:
		return control.Termination{Reason: control.ReasonStartFailed, Message: err.Error()}
	}
	return l.termination(failed)
}

// live goes through the VM's life. The error says why there was none.
func (l *launcher) live(ctx context.Context) error {
	if err := l.agent.Listen(); err != nil {
		l.Log.Warn("probes are not answered", "error", err)
	}
	process.Warm()
	version, err := l.askVersion(ctx)
	if err != nil {
		return err
	}
	l.link = link.New(l.SlotSocket, version, l.report(), l.Log)
	for l.life.Phase != life.Ended {
		l.step(ctx)
	}
	return nil
}

var errStopped = errors.New("asked to end before the launcher was ready")

// askVersion learns QEMU's version, unless the launcher is asked to end meanwhile.
func (l *launcher) askVersion(ctx context.Context) (version string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		version, err = process.QEMUVersion(ctx, l.QEMU, l.QEMUVersion)
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

// step waits for one event and carries out what follows from it.
func (l *launcher) step(ctx context.Context) {
	select {
	case <-l.canceled:
		l.canceled = nil
		l.hear(ctx, life.Canceled{}, nil)
	case s := <-l.Signals:
		l.Log.Info("signal", "signal", s.String())
		l.hear(ctx, life.ShutdownAsked{At: time.Now()}, nil)
	case m := <-l.link.Commands():
		l.handle(ctx, m)
	case result := <-l.results:
		l.catchUp(ctx)
		result()
	case e, ok := <-l.events:
		l.told(ctx, e, ok)
	case e := <-l.exited:
		l.drainEvents(ctx)
		l.exited, l.events = nil, nil
		l.hear(ctx, life.QEMUExited{Exit: e}, nil)
	case <-l.timers.fired():
		l.hear(ctx, life.Expired{Timer: l.timers.take()}, nil)
	}
}

// hear gives an event to package life and carries out the actions that follow. asker is the
// command that waits for an answer, or nil.
func (l *launcher) hear(ctx context.Context, e life.Event, asker *link.Command) {
	before := l.life
	var actions []life.Action
	l.life, actions = life.Step(l.life, e)
	l.note(before)
	for _, a := range actions {
		l.do(ctx, a, asker)
	}
}

// note logs changes of the VM's state, and tells them to the guest's agent.
func (l *launcher) note(before life.State) {
	if state := l.life.Shown(); state != before.Shown() {
		l.Log.Info("state", "state", state)
		l.agent.SetRunning(state == control.StateRunning || state == control.StateShuttingDown)
		if state == control.StateExited {
			l.agent.End()
		}
	}
	if ending := l.life.TPM.Ending; ending != "" && ending != before.TPM.Ending {
		l.Log.Info("the TPM's emulator has ended", "how", ending)
	}
	switch silent := l.life.Silence == life.Silent; {
	case silent == (before.Silence == life.Silent):
	case silent:
		l.Log.Warn("QEMU does not answer", "since", life.PatienceTime)
	default:
		l.Log.Info("QEMU answers again")
	}
}

// report returns the state as virt-handler gets it.
func (l *launcher) report() control.StateReport {
	r := l.life.Report()
	if l.start != nil {
		r.Machine = &l.start.Machine
	}
	if l.qemu != nil {
		r.QEMUPID = l.qemu.PID()
		if last := l.qemu.LastLine(); r.Failure != "" && l.life.Order.Incoming && last != "" {
			r.Failure += ": " + last
		}
		if end, ended := l.tpm.Ended(); ended && end.Exit != (life.Exit{}) && r.Failure != "" && l.life.MayMissTPM() {
			r.Failure += "; " + end.String()
		}
	}
	r.Jobs = l.jobs.list()
	r.Migration = l.moving.report
	return r
}

// termination returns how the VM ended, with QEMU's last words. failed says how parts of the VM have failed.
func (l *launcher) termination(failed error) control.Termination {
	t := l.life.Termination()
	if l.qemu != nil {
		t.Stderr = l.qemu.Said()
	}
	if failed != nil && t.Reason == control.ReasonStartFailed && l.life.Cause.Kind != life.NoTPM {
		t.Message += "; " + failed.Error()
	}
	return t
}

// later runs work on a goroutine of its own and then done on the loop.
func (l *launcher) later(ctx context.Context, work func() error, done func(error)) {
	go func() {
		err := work()
		l.hand(ctx, func() { done(err) })
	}()
}

// hand hands work to the loop, and waits until the loop takes it or ends. Only other goroutines may call it.
func (l *launcher) hand(ctx context.Context, do func()) {
	select {
	case l.results <- do:
	case <-ctx.Done():
	}
}

// close ends what is left of the VM. The error says how parts of the VM have failed.
func (l *launcher) close() (failed error) {
	if l.abort != nil {
		l.abort()
	}
	l.timers.close()
	if l.qmp != nil {
		l.qmp.Close()
	}
	failed = l.list().Close()
	if l.stderr != nil {
		l.stderr.Close()
	}
	l.moving.close()
	disks.CloseAll(l.files)
	if l.link != nil {
		l.link.Close()
	}
	return failed
}
