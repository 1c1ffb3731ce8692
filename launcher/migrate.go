package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/disks"
	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/launcher/link"
	"github.com/kubeqemu/kubeqemu/launcher/migration"
	"github.com/kubeqemu/kubeqemu/launcher/process"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// moving is what a launcher holds of a guest that moves from one launcher to another. The loop
// owns it.
type moving struct {
	// state is QEMU's end of the channel for the guest's memory and devices; nil before
	// open-channel.
	state *os.File
	// peer is the other end, which virt-handler has too. While it is open here, the channel does
	// not end with virt-handler: QEMU would let the guest run on, which may run elsewhere by then.
	peer    *os.File
	mirrors []migration.Mirror
	carried []migration.Carried
	// kept are the UEFI variables, if the target has a file of its own for them.
	kept   *migration.Carried
	target *migration.Target // nil before the first export, and before receive
	// receiving: the target belongs to a job.
	receiving bool

	limits migration.Limits
	// changed gets a value when QEMU may have come further.
	changed chan struct{}
	// permit gets the answer of package life to the question for the switchover.
	permit chan error
	// postCopy is closed when the memory is to come last; nil if it cannot.
	postCopy chan struct{}
	stop     context.CancelFunc // cancels the migration; nil before one
	report   *control.MigrationReport
}

// look has the job look at QEMU.
func (m *moving) look() {
	select {
	case m.changed <- struct{}{}:
	default: // it looks anyway, or there is no job
	}
}

func (m *moving) cancel() {
	if m.stop != nil {
		m.stop()
	}
}

// close closes the channels.
func (m *moving) close() {
	for _, f := range []*os.File{m.state, m.peer} {
		if f != nil {
			f.Close()
		}
	}
	for _, d := range m.mirrors {
		d.Channel.Close()
	}
	for _, d := range m.carried {
		d.Channel.Close()
	}
	if m.kept != nil {
		m.kept.Channel.Close()
	}
	if m.target != nil {
		m.target.Close()
	}
	m.state, m.peer, m.mirrors, m.carried, m.kept, m.target = nil, nil, nil, nil, nil, nil
}

// canMove returns why no channel can be opened now, or nil.
func (l *launcher) canMove(command string) error {
	switch {
	case !l.life.Moveable():
		return fmt.Errorf("%s: the VM is %s", command, l.life.Shown())
	case l.moving.receiving, l.busy[exporting.name] > 0:
		return fmt.Errorf("%s: the channels are in use", command)
	}
	return nil
}

// receives returns why the guest of another QEMU cannot be received now, or nil.
func (l *launcher) receives(command string) error {
	if l.life.Phase != life.Receiving {
		return fmt.Errorf("%s: the VM is %s", command, l.life.Shown())
	}
	return l.canMove(command)
}

// openChannel answers with the other end of a new channel for the guest's state. A source holds
// that end open too.
func (l *launcher) openChannel(_ context.Context, m *link.Command) {
	ours, theirs, err := process.Pair("channel")
	if err != nil {
		m.Answer(nil, err)
		return
	}
	l.moving.close()
	if l.life.Phase != life.Receiving {
		if l.moving.peer, err = process.Duplicate(theirs); err != nil {
			ours.Close()
			theirs.Close()
			m.Answer(nil, err)
			return
		}
	}
	l.moving.state = ours
	m.Answer(nil, nil, theirs)
}

// mirrorDisk answers with the other end of a new connection to the target's disk.
func (l *launcher) mirrorDisk(_ context.Context, m *link.Command) {
	if namesVariables(m) {
		l.mirrorVariables(m)
		return
	}
	disk, err := l.namedDisk(m)
	switch {
	case err != nil:
	case l.moving.state == nil:
		err = errors.New("mirror-disk: no channel was opened")
	case slices.ContainsFunc(l.moving.mirrors, func(d migration.Mirror) bool { return d.Node == disk.NodeName() }),
		slices.ContainsFunc(l.moving.carried, func(d migration.Carried) bool { return d.Disk == disk.Name }):
		err = fmt.Errorf("mirror-disk: disk %q is mirrored already", disk.Name)
	}
	if err != nil {
		m.Answer(nil, err)
		return
	}
	ours, theirs, err := process.Pair("disk " + disk.Name)
	if err != nil {
		m.Answer(nil, err)
		return
	}
	if disk.Carried() {
		l.moving.carried = append(l.moving.carried, migration.Carried{Disk: disk.Name, Path: disk.Image.Path, Size: disk.Image.Packed, Channel: ours})
		m.Answer(nil, nil, theirs)
		return
	}
	l.moving.mirrors = append(l.moving.mirrors, migration.Mirror{Disk: disk.Name, Node: disk.NodeName(), Channel: ours})
	m.Answer(nil, nil, theirs)
}

// exportDisk answers with a connection to a disk of a guest that is to be received.
func (l *launcher) exportDisk(m *link.Command) (work, error) {
	if namesVariables(m) {
		return l.exportVariables(m)
	}
	disk, err := l.namedDisk(m)
	if err != nil {
		return nil, err
	}
	target := l.moving.receiver(l)
	if disk.Carried() {
		return func(context.Context) (answer, error) {
			file, err := target.Take(disk.Name, disk.Image.Path, disk.Image.Packed)
			return answer{file: file}, err
		}, nil
	}
	return func(ctx context.Context) (answer, error) {
		file, err := target.Export(ctx, disk.NodeName())
		return answer{file: file}, err
	}, nil
}

// namesVariables says whether a command is about the UEFI variables, and not a disk.
func namesVariables(m *link.Command) bool {
	var request control.DiskRequest
	return control.Decode(m.Data, &request) == nil && request.Disk == control.VariablesDisk
}

// keptVariables is how the launcher reaches the file of the UEFI variables on the claim with the guest's state, and its size. The file's own path
// may lead elsewhere by now.
func (l *launcher) keptVariables(m *link.Command) (path string, size int64, err error) {
	f := l.start.Machine.Firmware
	if f == nil || !f.Variables.InState || l.variables == nil {
		return "", 0, fmt.Errorf("%s: the machine has no UEFI variables on a claim", m.Execute)
	}
	return fmt.Sprintf("/proc/self/fd/%d", l.variables.Fd()), f.VariablesSize(), nil
}

// mirrorVariables is mirrorDisk for the UEFI variables.
func (l *launcher) mirrorVariables(m *link.Command) {
	path, size, err := l.keptVariables(m)
	switch {
	case err != nil:
	case l.moving.state == nil:
		err = errors.New("mirror-disk: no channel was opened")
	case l.moving.kept != nil:
		err = errors.New("mirror-disk: the UEFI variables are copied already")
	}
	if err != nil {
		m.Answer(nil, err)
		return
	}
	ours, theirs, err := process.Pair(control.VariablesDisk)
	if err != nil {
		m.Answer(nil, err)
		return
	}
	l.moving.kept = &migration.Carried{Disk: control.VariablesDisk, Path: path, Size: size, Channel: ours}
	m.Answer(nil, nil, theirs)
}

// exportVariables is exportDisk for the UEFI variables.
func (l *launcher) exportVariables(m *link.Command) (work, error) {
	path, size, err := l.keptVariables(m)
	if err != nil {
		return nil, err
	}
	target := l.moving.receiver(l)
	return func(context.Context) (answer, error) {
		file, err := target.Take(control.VariablesDisk, path, size)
		return answer{file: file}, err
	}, nil
}

// permitPostCopy has QEMU be ready for a guest whose memory comes last.
func (l *launcher) permitPostCopy(*link.Command) (work, error) {
	target := l.moving.receiver(l)
	return result(func(ctx context.Context) (control.PostCopyReply, error) {
		err := target.PermitPostCopy(ctx)
		var refused *qmp.Error
		if errors.As(err, &refused) {
			return control.PostCopyReply{Refused: bounded(refused.Error(), control.MaxJobError)}, nil
		}
		return control.PostCopyReply{}, err
	}), nil
}

func (m *moving) receiver(l *launcher) *migration.Target {
	if m.target == nil {
		m.changed = make(chan struct{}, 1)
		m.target = &migration.Target{QEMU: l.qmp, Changed: m.changed}
	}
	return m.target
}

// namedDisk is the disk of the Machine that a command names, which is writable or carried.
func (l *launcher) namedDisk(m *link.Command) (disk qemuargs.Disk, err error) {
	var request control.DiskRequest
	if err := control.Decode(m.Data, &request); err != nil {
		return disk, err
	}
	for _, d := range l.start.Machine.Disks {
		if d.Name == request.Disk && (!d.ReadOnly || d.Carried()) {
			return d, nil
		}
	}
	return disk, fmt.Errorf("%s: the machine has no disk %q that is copied", m.Execute, request.Disk)
}

// receive lets QEMU receive a guest from the channel.
func (l *launcher) receive(ctx context.Context, m *link.Command) {
	state := l.moving.state
	if state == nil {
		m.Answer(nil, errors.New("receive: no channel was opened"))
		return
	}
	target, machine, tpm, log := l.moving.receiver(l), &l.start.Machine, l.arrivingTPM, l.Log
	target.Whole = func() error {
		disks.Whole(machine, log)
		err := disks.SyncArrived(machine.TPM, tpm)
		if err != nil {
			log.Warn("the TPM's state that has arrived may not outlive the node", "error", err)
		}
		return err
	}
	l.moving.state, l.moving.receiving = nil, true
	l.startJob(ctx, m, control.JobReceive, control.JobTargetGuest, 0, func(ctx context.Context) (int64, error) {
		defer state.Close() // also if nobody waits for the result any more: the source would wait for the target
		return 0, target.Receive(ctx, state, func() { l.tell(ctx, life.AllButMemory{}) })
	}, func(err error) {
		l.moving.receiving = false
		if l.life.Memory == life.Coming && err != nil && !errors.Is(err, migration.ErrNoReturn) {
			return // QEMU has ended, and the loop hears of that
		}
		l.hear(ctx, life.ReceptionEnded{Err: err}, nil)
	})
}

// tell has the loop hear an event of a job's.
func (l *launcher) tell(ctx context.Context, e life.Event) {
	select {
	case l.results <- func() { l.hear(ctx, e, nil) }:
	case <-ctx.Done():
	}
}

// maxSeconds bounds the times of a migration: a month.
const maxSeconds = 31 * 24 * 60 * 60

// migrate asks package life whether the guest can leave.
func (l *launcher) migrate(ctx context.Context, m *link.Command) {
	var r control.MigrateRequest
	err := control.Decode(m.Data, &r)
	switch {
	case err != nil:
	case l.moving.state == nil:
		err = errors.New("migrate: no channel was opened")
	case r.BytesPerSecond < 0, r.DowntimeMilliseconds <= 0, r.DowntimeMilliseconds > maxSeconds*1000,
		r.CompletionSeconds <= 0, r.CompletionSeconds > maxSeconds, r.StallSeconds <= 0, r.StallSeconds > maxSeconds:
		err = fmt.Errorf("migrate: the limits %+v are not between 1 and %d seconds", r, maxSeconds)
	}
	if err != nil {
		m.Answer(nil, err)
		return
	}
	l.moving.limits = migration.Limits{Bandwidth: r.BytesPerSecond, Downtime: time.Duration(r.DowntimeMilliseconds) * time.Millisecond,
		Completion: time.Duration(r.CompletionSeconds) * time.Second, Stall: time.Duration(r.StallSeconds) * time.Second, AutoConverge: r.AutoConverge,
		PostCopy: r.PostCopy}
	l.hear(ctx, life.MigrateAsked{Busy: l.operating > 0 || l.jobs.running() || l.keepingTPM}, m)
}

// send has QEMU send the guest to the channel.
func (l *launcher) send(ctx context.Context, m *link.Command) {
	moving := &l.moving
	moving.changed, moving.permit, moving.report = make(chan struct{}, 1), make(chan error, 1), &control.MigrationReport{}
	state, mirrors, carried, kept, permit := moving.state, moving.mirrors, moving.carried, moving.kept, moving.permit
	moving.state, moving.mirrors, moving.carried, moving.kept, moving.postCopy = nil, nil, nil, nil, nil
	if moving.limits.PostCopy {
		moving.postCopy = make(chan struct{})
	}
	source := &migration.Source{QEMU: l.qmp, State: state, Mirrors: mirrors, Carried: carried, Limits: moving.limits, Changed: moving.changed,
		Variables: l.variables, Kept: kept, PostCopy: moving.postCopy,
		Permit:   func(ctx context.Context) error { return l.askSwitchover(ctx, permit) },
		Trails:   func() { l.tell(ctx, life.MemoryTrails{}) },
		Progress: func(p migration.Progress) { l.tellProgress(ctx, p) },
	}
	var sent migration.Progress
	tpm := l.tpm
	moving.stop = l.startJob(ctx, m, control.JobMigrate, control.JobTargetGuest, 0, func(ctx context.Context) (_ int64, err error) {
		defer func() {
			state.Close()
			for _, d := range mirrors {
				d.Channel.Close()
			}
			for _, d := range carried {
				d.Channel.Close()
			}
			if kept != nil {
				kept.Channel.Close()
			}
		}()
		sent, err = source.Run(ctx)
		if err != nil && tpm.HasEnded() {
			err = fmt.Errorf("%w; the emulator of the TPM %s", err, tpm.Exit())
		}
		return sent.Transferred, err
	}, func(err error) {
		if err == nil {
			l.moving.report = migrationReport(sent)
		}
		l.moving.close()
		l.moving.postCopy = nil
		l.hear(ctx, life.MigrationEnded{Err: err, NoReturn: errors.Is(err, migration.ErrNoReturn)}, nil)
	})
}

// postCopyAsked has the memory of the guest come last that is being sent.
func (l *launcher) postCopyAsked(ctx context.Context, m *link.Command) {
	j, err := l.namedJob(m)
	switch {
	case err != nil:
	case j.Kind != control.JobMigrate || j.Finished() || l.moving.postCopy == nil:
		err = fmt.Errorf("post-copy: job %d is no migration that can go on by post-copy", j.ID)
	default:
		select {
		case <-l.moving.postCopy: // once more changes nothing
		default:
			close(l.moving.postCopy)
			l.hear(ctx, life.PostCopyBegun{}, nil)
			l.moving.look()
		}
	}
	m.Answer(nil, err)
}

// askSwitchover asks the loop, and with it package life.
func (l *launcher) askSwitchover(ctx context.Context, permit <-chan error) error {
	l.tell(ctx, life.SwitchoverAsked{})
	select {
	case err := <-permit:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tellProgress reports how far the migration is.
func (l *launcher) tellProgress(ctx context.Context, p migration.Progress) {
	report := migrationReport(p)
	select {
	case l.results <- func() {
		l.moving.report = report
		l.link.Report(l.report())
	}:
	case <-ctx.Done():
	}
}

func migrationReport(p migration.Progress) *control.MigrationReport {
	return &control.MigrationReport{Transferred: p.Transferred, Remaining: p.Remaining, Total: p.Total, DirtyBytesPerSecond: p.DirtyRate,
		Milliseconds: p.Elapsed.Milliseconds(), DowntimeMilliseconds: p.Downtime.Milliseconds(), PostCopyDue: p.PostCopyDue}
}

func (l *launcher) takeBackAsked(ctx context.Context, m *link.Command) {
	l.hear(ctx, life.TakeBackAsked{}, m)
}

func (l *launcher) releaseAsked(ctx context.Context, m *link.Command) {
	l.hear(ctx, life.ReleaseAsked{}, m)
}

// takeBack lets the guest run here again. QEMU does so by itself when the channel ends before the
// target has answered.
func (l *launcher) takeBack(ctx context.Context, a life.TakeBack) {
	if !a.Sent {
		l.moving.close()
		return
	}
	l.ask(ctx, handshakeTimeout, l.qmp.Cont, l.warn("let the guest run here again"))
}

func (l *launcher) runAsked(ctx context.Context, m *link.Command) {
	var request control.RunRequest
	if err := control.Decode(m.Data, &request); err != nil {
		m.Answer(nil, err)
		return
	}
	l.hear(ctx, life.RunAsked{Paused: request.Paused, At: time.Now()}, m)
}

// arrived notes that the guest uses its disks here, as soon as it may run: a guest that arrives paused may run at any time.
func (l *launcher) arrived(ctx context.Context, before life.State) {
	if !before.Order.Incoming || before.Phase != life.Received || l.life.Phase != life.Running && l.life.Phase != life.Paused {
		return
	}
	l.keepTPM(ctx)
	machine, log := &l.start.Machine, l.Log
	l.later(ctx, func() error {
		disks.Arrived(machine, log)
		return nil
	}, func(error) {})
}

// runReceived lets a received guest run, and answers when QEMU has done so. QEMU takes the locks of
// the disks then, which the source has given up. A QEMU that does not answer in time may wait for storage, and let the guest
// run later. virt-handler waits for operateTimeout, and the launcher until QEMU has answered or ended.
func (l *launcher) runReceived(ctx context.Context, m *link.Command) {
	client := l.qmp
	patience, stop := context.WithTimeout(ctx, operateTimeout)
	answer := func(refused string, err error) { // once
		if m == nil {
			return
		}
		if err != nil {
			err = fmt.Errorf("let the received guest run: %w", err)
		}
		m.Answer(control.RunReply{Refused: refused}, err)
		m = nil
	}
	l.later(ctx, func() error {
		<-patience.Done()
		return qmp.ErrTimeout
	}, func(err error) { answer("", err) })
	l.later(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, forever)
		defer cancel()
		return client.Cont(ctx)
	}, func(err error) {
		defer stop()
		var refused *qmp.Error
		switch {
		case err == nil:
			l.settleLinks(ctx)
			l.hear(ctx, life.RunAnswered{}, nil)
			answer("", nil)
		case errors.As(err, &refused):
			l.hear(ctx, life.RunFailed{Err: err, Unheard: m == nil}, nil)
			if l.life.Phase == life.Received { // its memory still comes, and it may be asked to run again
				answer("", err)
				return
			}
			answer(bounded(refused.Error(), control.MaxJobError), nil)
		default:
			answer("", err)
		}
	})
}
