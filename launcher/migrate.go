package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/launcher/link"
	"github.com/kubeqemu/kubeqemu/launcher/migration"
	"github.com/kubeqemu/kubeqemu/launcher/process"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// moving is what a launcher holds of a guest that moves from one launcher to another. The loop
// owns it.
type moving struct {
	// channels are those that were opened for the next migration. State is nil before open-channel.
	channels migration.Channels
	// peer is the other end, which virt-handler has too. While it is open here, the channel does
	// not end with virt-handler: QEMU would let the guest run on, which may run elsewhere by then.
	peer   *os.File
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

// look makes the job look at QEMU.
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
	m.channels.Close()
	if m.peer != nil {
		m.peer.Close()
	}
	if m.target != nil {
		m.target.Close()
	}
	m.channels, m.peer, m.target = migration.Channels{}, nil, nil
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
	l.moving.channels.State = ours
	m.Answer(nil, nil, theirs)
}

// mirrorDisk answers with the other end of a new connection to the target's disk.
func (l *launcher) mirrorDisk(_ context.Context, m *link.Command) {
	if namesVariables(m) {
		l.mirrorVariables(m)
		return
	}
	disk, err := l.namedDisk(m)
	opened := &l.moving.channels
	switch {
	case err != nil:
	case opened.State == nil:
		err = errors.New("mirror-disk: no channel was opened")
	case slices.ContainsFunc(opened.Mirrors, func(d migration.Mirror) bool { return d.Node == disk.NodeName() }),
		slices.ContainsFunc(opened.Carried, func(d migration.Carried) bool { return d.Disk == disk.Name }):
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
		opened.Carried = append(opened.Carried,
			migration.Carried{Disk: disk.Name, Path: disk.Image.Path, Size: disk.Image.Packed, Channel: ours})
		m.Answer(nil, nil, theirs)
		return
	}
	opened.Mirrors = append(opened.Mirrors, migration.Mirror{Disk: disk.Name, Node: disk.NodeName(), Channel: ours})
	m.Answer(nil, nil, theirs)
}

// namesVariables reports whether a command is about the UEFI variables, and not about a disk.
func namesVariables(m *link.Command) bool {
	var request control.DiskRequest
	return control.Decode(m.Data, &request) == nil && request.Disk == control.VariablesDisk
}

// keptVariables returns what OnClaim does, and fails if the variables are not on a claim.
func (l *launcher) keptVariables(m *link.Command) (path string, size int64, err error) {
	path, size, kept := l.variables.OnClaim()
	if !kept {
		err = fmt.Errorf("%s: the machine has no UEFI variables on a claim", m.Execute)
	}
	return path, size, err
}

// mirrorVariables does for the UEFI variables what mirrorDisk does for a disk.
func (l *launcher) mirrorVariables(m *link.Command) {
	path, size, err := l.keptVariables(m)
	switch {
	case err != nil:
	case l.moving.channels.State == nil:
		err = errors.New("mirror-disk: no channel was opened")
	case l.moving.channels.Kept != nil:
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
	l.moving.channels.Kept = &migration.Carried{Disk: control.VariablesDisk, Path: path, Size: size, Channel: ours}
	m.Answer(nil, nil, theirs)
}

// namedDisk returns the disk of the Machine that a command names. The disk is writable or carried.
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

// tell makes the loop hear an event of a job's.
func (l *launcher) tell(ctx context.Context, e life.Event) {
	l.hand(ctx, func() { l.hear(ctx, e, nil) })
}

// maxSeconds bounds the times of a migration: a day.
const maxSeconds = 24 * 60 * 60

// migrate asks package life whether the guest can leave.
func (l *launcher) migrate(ctx context.Context, m *link.Command) {
	var r control.MigrateRequest
	err := control.Decode(m.Data, &r)
	switch {
	case err != nil:
	case l.moving.channels.State == nil:
		err = errors.New("migrate: no channel was opened")
	case r.BytesPerSecond < 0:
		err = fmt.Errorf("migrate: limits: %d bytes per second: want 0 or more", r.BytesPerSecond)
	case r.DowntimeMilliseconds <= 0, r.DowntimeMilliseconds > maxSeconds*1000,
		r.CompletionSeconds <= 0, r.CompletionSeconds > maxSeconds, r.StallSeconds <= 0, r.StallSeconds > maxSeconds:
		err = fmt.Errorf("migrate: limits: a time of %d s in all, %d s without progress and %d ms of standstill: "+
			"none may be less than 1, or more than %d hours",
			r.CompletionSeconds, r.StallSeconds, r.DowntimeMilliseconds, maxSeconds/(60*60))
	}
	if err != nil {
		m.Answer(nil, err)
		return
	}
	l.moving.limits = migration.Limits{
		Bandwidth: r.BytesPerSecond, Downtime: time.Duration(r.DowntimeMilliseconds) * time.Millisecond,
		Completion: time.Duration(r.CompletionSeconds) * time.Second, Stall: time.Duration(r.StallSeconds) * time.Second,
		AutoConverge: r.AutoConverge, PostCopy: r.PostCopy}
	l.hear(ctx, life.MigrateAsked{Busy: l.operating > 0 || l.jobs.running() || l.tpm.Keeping()}, m)
}

// send makes QEMU send the guest to the channel.
func (l *launcher) send(ctx context.Context, m *link.Command) {
	moving := &l.moving
	moving.changed, moving.permit, moving.report = make(chan struct{}, 1), make(chan error, 1), &control.MigrationReport{}
	channels, permit := moving.channels, moving.permit
	moving.channels, moving.postCopy = migration.Channels{}, nil
	if moving.limits.PostCopy {
		moving.postCopy = make(chan struct{})
	}
	source := &migration.Source{QEMU: l.qmp, Channels: channels, Limits: moving.limits,
		Changed: moving.changed, Variables: l.variables.File(), PostCopy: moving.postCopy,
		Permit:   func(ctx context.Context) error { return l.askSwitchover(ctx, permit) },
		Trails:   func() { l.tell(ctx, life.MemoryTrails{}) },
		Progress: func(p migration.Progress) { l.tellProgress(ctx, p) },
	}
	var sent migration.Progress
	moving.stop = l.startJob(ctx, m, control.JobMigrate, control.JobTargetGuest, 0,
		func(ctx context.Context) (_ int64, err error) {
			defer channels.Close()
			sent, err = source.Run(ctx)
			if end, ended := l.tpm.Ended(); ended && err != nil {
				err = fmt.Errorf("%w; %s", err, end)
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

// postCopyAsked lets the memory of the guest that is being sent come last.
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

// askSwitchover asks the loop, and with it package life, for the switchover, and waits for the answer.
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
	return &control.MigrationReport{Transferred: p.Transferred, Remaining: p.Remaining, Total: p.Total,
		DirtyBytesPerSecond: p.DirtyRate, Milliseconds: p.Elapsed.Milliseconds(),
		DowntimeMilliseconds: p.Downtime.Milliseconds(), PostCopyDue: p.PostCopyDue}
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
