package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/launcher/link"
	"github.com/kubeqemu/kubeqemu/launcher/pinning"
	"github.com/kubeqemu/kubeqemu/launcher/process"
)

// operation carries out one command of virt-handler. Exactly one of now and beside is set.
type operation struct {
	// when returns why the VM's state forbids the operation. A nil when always allows it.
	when func(l *launcher, command string) error
	// now carries the operation out on the loop, and answers. It must not wait.
	now func(l *launcher, ctx context.Context, m *link.Command)
	// beside reads the command's arguments and returns the work. The work runs beside the
	// loop, and may wait.
	beside func(l *launcher, m *link.Command) (work, error)
	// timeout bounds the work. 0 is for work that ignores its context.
	timeout time.Duration
	// queue bounds how much work of this kind runs at a time.
	queue queue
}

// work runs beside the loop and returns the answer to a command.
type work func(context.Context) (answer, error)

// answer is what virt-handler gets.
type answer struct {
	result any
	file   *os.File // nil if the command brings none
	// feed runs beside the loop once the answer was sent. When feed returns, the work's place
	// in its queue becomes free, and done is called. Both may be nil.
	feed, done func()
}

// result returns work whose answer is what ask returns. The answer brings no file.
func result[T any](ask func(context.Context) (T, error)) work {
	return func(ctx context.Context) (answer, error) {
		said, err := ask(ctx)
		return answer{result: said}, err
	}
}

// outcome returns work whose answer is success or an error, and no more.
func outcome(do func(context.Context) error) work {
	return func(ctx context.Context) (answer, error) { return answer{}, do(ctx) }
}

// queue limits how much work of one kind runs at a time. The zero queue has no limit.
type queue struct {
	name string
	most int
	full string // the error for a command that finds no place
}

var (
	inspecting = queue{"inspect", 1, "still inspecting: a file system does not answer"}
	measuring  = queue{"stats", 1, "still reading statistics"}
	reading    = queue{"arguments", 1, "still reading QEMU's arguments"}
	picturing  = queue{"screenshot", 1, "a screenshot is being taken already"}
	exporting  = queue{"export", 1, "a disk is being exported already"}
	asking     = queue{"guest agent", 8, "the guest agent has much to answer already"}
)

// operations maps each command to its operation.
var operations = map[string]operation{
	control.CommandQueryCommands: {now: (*launcher).queryCommands},
	control.CommandQueryState:    {now: (*launcher).queryState},
	control.CommandInspect:       {beside: (*launcher).inspect, queue: inspecting},

	control.CommandStart:    {now: (*launcher).startRequested},
	control.CommandReject:   {now: (*launcher).rejected},
	control.CommandShutdown: {now: (*launcher).shutdown},
	control.CommandGrace:    {now: (*launcher).shortenGrace},

	control.CommandPause:      {now: (*launcher).changeGuest},
	control.CommandUnpause:    {now: (*launcher).changeGuest},
	control.CommandReset:      {now: (*launcher).changeGuest},
	control.CommandSoftReboot: {now: (*launcher).changeGuest},

	control.CommandBecome: {when: (*launcher).serves, now: (*launcher).become},

	control.CommandCancelJob: {now: (*launcher).cancelJob},
	control.CommandForgetJob: {now: (*launcher).forgetJob},

	control.CommandOpenChannel: {when: (*launcher).canMove, now: (*launcher).openChannel},
	control.CommandMirrorDisk:  {when: (*launcher).canMove, now: (*launcher).mirrorDisk},
	control.CommandExportDisk: {when: (*launcher).receives, beside: (*launcher).exportDisk, timeout: operateTimeout,
		queue: exporting},
	control.CommandPermitPostCopy: {when: (*launcher).receives, beside: (*launcher).permitPostCopy,
		timeout: operateTimeout, queue: exporting},
	control.CommandReceive:  {when: (*launcher).receives, now: (*launcher).receive},
	control.CommandMigrate:  {now: (*launcher).migrate},
	control.CommandPostCopy: {now: (*launcher).postCopyAsked},
	control.CommandRun:      {now: (*launcher).runAsked},
	control.CommandTakeBack: {now: (*launcher).takeBackAsked},
	control.CommandRelease:  {now: (*launcher).releaseAsked},

	control.CommandConsole: {when: (*launcher).hasConsole, now: (*launcher).handOutConsole},
	control.CommandVNC:     {when: (*launcher).hasScreen, beside: (*launcher).dialVNC, timeout: operateTimeout},
	control.CommandScreenshot: {when: (*launcher).hasScreen, beside: (*launcher).takeScreenshot, timeout: operateTimeout,
		queue: picturing},
	control.CommandMovePointer: {when: (*launcher).hasScreen, beside: (*launcher).movePointer, timeout: operateTimeout},
	control.CommandStats: {when: (*launcher).hasQEMU, beside: (*launcher).measure, timeout: statsTimeout,
		queue: measuring},
	control.CommandArguments: {when: (*launcher).runsQEMU, beside: (*launcher).arguments, timeout: operateTimeout,
		queue: reading},

	control.CommandGuestInfo: {when: (*launcher).hasAgent, beside: (*launcher).guestInfo, timeout: operateTimeout,
		queue: asking},
	control.CommandUsers: {when: (*launcher).hasAgent, beside: (*launcher).guestUsers, timeout: operateTimeout,
		queue: asking},
	control.CommandFileSystems: {when: (*launcher).hasAgent, beside: (*launcher).guestFileSystems, timeout: operateTimeout,
		queue: asking},
	control.CommandFreeze: {when: (*launcher).hasAgent, beside: (*launcher).freeze, timeout: operateTimeout,
		queue: asking},
	control.CommandUnfreeze: {when: (*launcher).hasAgent, beside: (*launcher).unfreeze, timeout: operateTimeout,
		queue: asking},
	control.CommandHoldPings: {when: (*launcher).hasAgentPort, now: (*launcher).holdPings},
}

// queryCommands answers what the launcher knows.
func (l *launcher) queryCommands(_ context.Context, m *link.Command) {
	m.Answer(control.CommandsText(), nil)
}

const (
	// operateTimeout bounds an operation for which a user waits.
	operateTimeout = 20 * time.Second
	// statsTimeout bounds QEMU's part of the statistics. virt-handler gets the rest even when
	// QEMU hangs.
	statsTimeout = time.Second
)

// handle carries out one command of virt-handler.
func (l *launcher) handle(ctx context.Context, m *link.Command) {
	defer m.Close()
	o, ok := operations[m.Execute]
	if !ok {
		m.Answer(nil, fmt.Errorf("unknown command %q", m.Execute))
		return
	}
	if o.when != nil {
		if err := o.when(l, m.Execute); err != nil {
			m.Answer(nil, err)
			return
		}
	}
	if o.now != nil {
		o.now(l, ctx, m)
		return
	}
	do, err := o.beside(l, m)
	if err == nil {
		err = l.busy.begin(o.queue)
	}
	if err != nil {
		m.Answer(nil, err)
		return
	}
	l.workFor(ctx, m, o, do)
}

// workFor does an operation's work beside the loop, and answers.
func (l *launcher) workFor(ctx context.Context, m *link.Command, o operation, do work) {
	var said answer
	l.later(ctx, func() (err error) {
		working, cancel := context.WithTimeout(ctx, cmp.Or(o.timeout, forever))
		defer cancel()
		said, err = do(working)
		return err
	}, func(err error) {
		switch {
		case err != nil || said.file == nil:
			m.Answer(said.result, err)
		default:
			m.Answer(said.result, nil, said.file)
		}
		if said.feed == nil {
			l.busy.end(o.queue)
			return
		}
		l.later(ctx, func() error { said.feed(); return nil }, func(error) {
			l.busy.end(o.queue)
			said.done()
		})
	})
}

// busy counts the work that runs beside the loop, by the queue's name.
type busy map[string]int

// begin takes a place in a queue, or returns the error of a full queue.
func (b busy) begin(q queue) error {
	if q.most > 0 && b[q.name] >= q.most {
		return errors.New(q.full)
	}
	b[q.name]++
	return nil
}

func (b busy) end(q queue) { b[q.name]-- }

// queryState answers with the state. Then it lets QEMU be probed and the guest's agent be
// asked for news. Both happen only when virt-handler asks, so that an idle VM is woken once
// for everything.
func (l *launcher) queryState(ctx context.Context, m *link.Command) {
	m.Answer(l.report(), nil)
	l.hear(ctx, life.Probed{}, nil)
	l.agent.Poll()
}

// inspect answers with facts about disks that only the pod can see.
func (l *launcher) inspect(m *link.Command) (work, error) {
	var request control.InspectRequest
	if err := control.Decode(m.Data, &request); err != nil {
		return nil, err
	}
	if len(request.ConfigVolumes) > 0 && l.start != nil {
		return nil, errors.New("inspect: the disks of config volumes were made for the machine, and stay as they are")
	}
	folders, cpus := l.Folders, l.ownCPUs
	return func(ctx context.Context) (answer, error) {
		reply, err := folders.Inspect(ctx, request)
		if err != nil {
			return answer{}, err
		}
		for _, nic := range request.Devices {
			reply.Devices = append(reply.Devices, deviceFacts(os.Environ(), nic))
		}
		if request.CPUs {
			own, err := cpus()
			if err != nil {
				return answer{}, err
			}
			for _, c := range pinning.Sorted(own) {
				reply.CPUNodes = append(reply.CPUNodes, c.Node)
			}
		}
		return answer{result: reply}, nil
	}, nil
}

func (l *launcher) shutdown(ctx context.Context, m *link.Command) {
	m.Answer(nil, nil)
	l.hear(ctx, life.ShutdownAsked{At: time.Now()}, nil)
}

// shortenGrace answers success whether or not it changes anything.
func (l *launcher) shortenGrace(ctx context.Context, m *link.Command) {
	var request control.GraceRequest
	err := control.Decode(m.Data, &request)
	if err == nil {
		l.hear(ctx, life.GraceShortened{Seconds: request.Seconds, At: time.Now()}, nil)
	}
	m.Answer(nil, err)
}

// changeGuest asks package life whether the guest can be paused, reset and the like now.
func (l *launcher) changeGuest(ctx context.Context, m *link.Command) {
	known := l.agent.Report()
	l.hear(ctx, life.OperationAsked{Operation: life.Operation(m.Execute),
		Agent: life.Agent{Connected: known.Connected, Frozen: known.Frozen}}, m)
}

// serves returns why a running VM cannot be changed now, or nil.
func (l *launcher) serves(command string) error {
	if !l.life.Stays() {
		return fmt.Errorf("%s: the guest is being migrated", command)
	}
	if !l.life.Serves() {
		return fmt.Errorf("%s: the VM is %s", command, l.life.Shown())
	}
	return nil
}

// hasQEMU returns why there are no statistics now, or nil.
func (l *launcher) hasQEMU(string) error {
	switch state := l.life.Shown(); state {
	case control.StateRunning, control.StatePaused, control.StateShuttingDown:
		return nil
	default:
		return fmt.Errorf("there are no statistics: the VM is %s", state)
	}
}

// measure answers with what the VM has used. Its queue has one place, so only one goroutine
// reads the source at a time.
func (l *launcher) measure(*link.Command) (work, error) {
	source := l.source
	return func(ctx context.Context) (answer, error) { return answer{result: source.Read(ctx)}, nil }, nil
}

// hasConsole returns why there is no serial console now, or nil.
func (l *launcher) hasConsole(string) error {
	if l.serial.Port() == nil || l.life.HasEnded() {
		return fmt.Errorf("there is no serial console: the VM is %s", l.life.Shown())
	}
	return nil
}

// handOutConsole answers with one end of a new socket pair. From now on the serial console is
// connected to the other end.
func (l *launcher) handOutConsole(_ context.Context, m *link.Command) {
	ours, theirs, err := process.SocketPair("console")
	if err != nil {
		m.Answer(nil, err)
		return
	}
	l.serial.Port().Connect(ours)
	m.Answer(nil, nil, theirs)
}
