package migration

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/qmp"
)

// Source sends a guest.
type Source struct {
	QEMU *qmp.Client
	Channels
	Limits Limits
	// Variables is the file of the guest's UEFI variables that QEMU has, under the name where the target looks for it
	// if it has the same volume; nil without UEFI.
	Variables *os.File
	// Changed gets a value after QEMU has sent an event.
	Changed <-chan struct{}
	// Permit is asked when the guest is stopped and its disks are copied. If Permit returns nil,
	// QEMU sends the rest, and the guest may run elsewhere from then on.
	Permit func(context.Context) error
	// PostCopy is closed when the guest is to go on at the target before its memory is there. It needs
	// Limits.PostCopy, and takes effect once the disks are copied.
	PostCopy <-chan struct{}
	// Trails is called once the memory follows the guest.
	Trails func()
	// Progress is told how far the migration is, once a second at most.
	Progress func(Progress)
}

// Channels lead to the target.
type Channels struct {
	// State is QEMU's end of the channel for the guest's memory and devices. Closing the other end
	// makes QEMU give up, and run its guest on.
	State *os.File
	// Mirrors are the disks that the target has files of its own for.
	Mirrors []Mirror
	// Carried are those of them that are only read.
	Carried []Carried
	// Kept is the file of the UEFI variables, to be copied to the target's own; nil if the target has the same one, or
	// keeps none.
	Kept *Carried
}

// Close closes the channels.
func (c Channels) Close() {
	if c.State != nil {
		c.State.Close()
	}
	for _, d := range c.Mirrors {
		d.Channel.Close()
	}
	for _, d := range c.Carried {
		d.Channel.Close()
	}
	if c.Kept != nil {
		c.Kept.Channel.Close()
	}
}

// Limits bound a migration.
type Limits struct {
	// Bandwidth of memory and of disks, in bytes per second; 0 is no limit.
	Bandwidth int64
	// Downtime is how long the guest may be stopped for what QEMU copies last.
	Downtime time.Duration
	// Completion bounds the whole migration, and Stall the time in which the rest gets no smaller.
	Completion, Stall time.Duration
	// AutoConverge slows the guest down, if it changes memory faster than the channel carries it.
	AutoConverge bool
	// PostCopy: where Completion or Stall would end the copying of memory, Progress says PostCopyDue, and the copying goes
	// on for postCopyPatience.
	PostCopy bool
}

// postCopyPatience is how long somebody has to close Source.PostCopy after post-copy was due.
const postCopyPatience = time.Minute

// Progress is how far a migration is. Numbers are bytes.
type Progress struct {
	Transferred, Remaining, Total int64
	// DirtyRate is how many bytes of memory the guest changes in a second.
	DirtyRate int64
	// Elapsed is the time since the beginning.
	Elapsed time.Duration
	// Downtime is known at the end.
	Downtime time.Duration
	// PostCopyDue: the migration ends soon without success unless it goes on by post-copy.
	PostCopyDue bool
}

// ErrTimeout is the error of a migration that took too long.
var ErrTimeout = errors.New("the migration takes too long")

// Run sends the guest. When Run returns nil, the target has the guest, and this QEMU's guest is
// stopped. When Run returns an error, the guest runs here if it ran before, or QEMU has ended. After
// ErrNoReturn the guest cannot run here.
//
// The end of ctx cancels a migration that has no permission yet. After the permission, Run returns
// when the target says that it has the guest, or that it could not load the guest, or when somebody
// closes the other end of State. The other end must stay open until it is decided where the guest
// runs: QEMU runs its guest on when the channel ends, although the target may have everything.
func (s *Source) Run(ctx context.Context) (Progress, error) {
	w := watch(s.Changed)
	defer w.stop()
	begun := time.Now()
	limited, cancel := context.WithTimeoutCause(ctx, s.Limits.Completion, tooLong(s.Limits))
	defer cancel()
	if err := s.prepare(ctx); err != nil {
		return Progress{}, err
	}
	if err := s.carry(limited); err != nil {
		return Progress{}, cause(limited, err)
	}
	// After the mirrors, which may take long: what the guest writes meanwhile QEMU sends.
	mirroring, err := s.mirror(limited, w, begun)
	var variables time.Time
	if err == nil {
		variables, err = s.written()
	}
	if err == nil { // what the guest writes from here on ends the migration
		err = s.carryVariables(limited)
	}
	if err == nil {
		err = s.begin(ctx)
	}
	if err != nil {
		return Progress{}, errors.Join(cause(limited, err), mirroring.drop(ctx, w))
	}
	if err = s.converge(ctx, w, begun); err == nil {
		err = s.switchOver(ctx, w, mirroring, variables)
	}
	if err != nil {
		err = errors.Join(err, s.cancel(ctx, w), mirroring.drop(ctx, w))
		return Progress{}, err
	}
	return s.finish(ctx, w, begun)
}

// switchoverTimeout bounds the time for which the guest may stand still before its rest is sent. A target's disk may
// hang.
const switchoverTimeout = 30 * time.Second

// switchOver ends the copies of disks, and asks for the permission. The guest stands still meanwhile. variables is when
// the guest's UEFI variables were last written before memory was sent.
func (s *Source) switchOver(ctx context.Context, w *watcher, mirroring *mirrors, variables time.Time) error {
	if now, err := s.written(); err != nil || !now.Equal(variables) {
		return errors.Join(err, errVariables)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, switchoverTimeout, fmt.Errorf("%w: the guest stood still for %s", ErrTimeout, switchoverTimeout))
	defer cancel()
	if err := mirroring.complete(ctx, w); err != nil {
		return cause(ctx, err)
	}
	return cause(ctx, s.Permit(ctx))
}

// errVariables: a flash chip does not tell QEMU's migration that the guest has written to it (hw/block/pflash_cfi01.c).
// So QEMU sends the chip once, and the target would have, and write to its file, what the chip held then.
var errVariables = errors.New("the guest has written UEFI variables while its memory was copied, and QEMU does not send these again: migrate the guest again when it has started")

// written returns when the guest's UEFI variables were last written. QEMU writes each change to their file at once.
func (s *Source) written() (time.Time, error) {
	if s.Variables == nil {
		return time.Time{}, nil
	}
	info, err := s.Variables.Stat()
	if err != nil {
		return time.Time{}, fmt.Errorf("look at the UEFI variables: %w", err)
	}
	named, err := os.Lstat(s.Variables.Name())
	if err == nil && !os.SameFile(info, named) {
		err = errReplaced
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("look for the UEFI variables: %w", err)
	}
	return info.ModTime(), nil
}

// errReplaced: others may write to the volume with the guest's state. The target would write the guest's variables over
// what was put there.
var errReplaced = errors.New("the file was replaced since the guest started, and QEMU still has the old file: stop and start the VM, which then has the new variables")

// cause returns why a context has ended, if err says no more than that it has.
func cause(ctx context.Context, err error) error {
	if errors.Is(err, ctx.Err()) {
		return context.Cause(ctx)
	}
	return err
}

func (s *Source) prepare(ctx context.Context) error {
	names := capabilities() // an earlier migration may have turned others on
	names[qmp.CapabilityAutoConverge], names[qmp.CapabilityPostCopy] = s.Limits.AutoConverge, s.Limits.PostCopy
	bandwidth := s.Limits.Bandwidth
	if bandwidth <= 0 {
		bandwidth = math.MaxInt32 << 10 // 2 TB/s: QEMU's default is 128 MiB/s
	}
	return command(ctx, "prepare migration", func(ctx context.Context) error {
		return errors.Join(s.QEMU.SetMigrationCapabilities(ctx, names),
			s.QEMU.SetMigrationParameters(ctx, qmp.MigrationParameters{MaxBandwidth: bandwidth, MaxPostCopyBandwidth: bandwidth, DowntimeLimit: s.Limits.Downtime.Milliseconds()}),
			// The stack of the target's pod has spoken with the guest's MAC on the networks of Multus, before
			// virt-handler took the links. The switches there would send the guest's frames to the target.
			s.QEMU.AnnounceSelf(ctx))
	})
}

// begin begins to send memory. QEMU keeps a descriptor that it was given and does not use, and the
// target would wait at the other end.
func (s *Source) begin(ctx context.Context) error {
	return command(ctx, "begin migration", func(ctx context.Context) error {
		if err := s.QEMU.GetFD(ctx, stateFD, s.State); err != nil {
			return err
		}
		if err := s.QEMU.Migrate(ctx, stateFD); err != nil {
			return errors.Join(err, s.QEMU.CloseFD(ctx, stateFD))
		}
		return nil
	})
}

// converge waits until QEMU has stopped its guest, because the rest is small enough, or because the memory is to
// follow.
func (s *Source) converge(ctx context.Context, w *watcher, begun time.Time) error {
	patience, asked := newPatience(s.Limits, begun, time.Now), s.PostCopy
	return w.until(ctx, func() (bool, error) {
		m, err := s.look(ctx, w, begun)
		if err == nil {
			err = errors.Join(failure(m), patience.look(m.RAM.Remaining))
		}
		if w.postCopyDue = patience.due(); err != nil || m.Status == qmp.MigrationPreSwitchover {
			return true, err
		}
		select {
		case <-asked:
			asked = nil
			return false, command(ctx, "begin post-copy", s.QEMU.MigrateStartPostCopy)
		default: // so is a nil channel
			return false, nil
		}
	})
}

// patience says when the copying of memory has taken too long. It is pure but for now.
type patience struct {
	limits Limits
	begun  time.Time
	now    func() time.Time
	stall  stall
	// since is when post-copy has become due; zero before. why is the error without it.
	since time.Time
	why   error
}

func newPatience(limits Limits, begun time.Time, now func() time.Time) *patience {
	return &patience{limits: limits, begun: begun, now: now, stall: stall{limit: limits.Stall, now: now}}
}

// look returns why the migration ends without success, or nil if it goes on.
func (p *patience) look(remaining int64) error {
	why := p.stall.look(remaining)
	if p.now().Sub(p.begun) > p.limits.Completion {
		why = tooLong(p.limits)
	}
	switch {
	case !p.limits.PostCopy:
		return why
	case !p.due() && why != nil:
		p.since, p.why = p.now(), why
	case p.due() && p.now().Sub(p.since) > postCopyPatience:
		return fmt.Errorf("%w, and did not go on by post-copy within %s", p.why, postCopyPatience)
	}
	return nil
}

// due reports whether only post-copy brings the migration to its end.
func (p *patience) due() bool { return !p.since.IsZero() }

func tooLong(l Limits) error {
	return fmt.Errorf("%w: completionTimeoutPerGiB gives it %s", ErrTimeout, l.Completion)
}

func (s *Source) look(ctx context.Context, w *watcher, begun time.Time) (m qmp.Migration, err error) {
	err = command(ctx, "ask how far the migration is", func(ctx context.Context) (err error) {
		m, err = s.QEMU.QueryMigrate(ctx)
		return err
	})
	if err == nil {
		s.tell(w, m, begun)
	}
	return m, err
}

func (s *Source) tell(w *watcher, m qmp.Migration, begun time.Time) {
	p := progress(m, time.Since(begun))
	p.PostCopyDue = w.postCopyDue
	w.tell(s.Progress, p)
}

func progress(m qmp.Migration, elapsed time.Duration) Progress {
	return Progress{Transferred: m.RAM.Transferred, Remaining: m.RAM.Remaining, Total: m.RAM.Total, DirtyRate: m.RAM.DirtyPages * m.RAM.PageSize,
		Elapsed: elapsed, Downtime: time.Duration(m.Downtime) * time.Millisecond}
}

// cancel ends the migration, and waits until QEMU has given it up.
func (s *Source) cancel(ctx context.Context, w *watcher) error {
	if err := command(ctx, "cancel migration", s.QEMU.MigrateCancel); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), commandTimeout)
	defer stop()
	err := w.until(ctx, func() (bool, error) {
		m, err := s.QEMU.QueryMigrate(ctx)
		return m.Status == qmp.MigrationCancelled || m.Status == qmp.MigrationFailed || m.Status == "", err
	})
	if err != nil {
		return fmt.Errorf("wait for the end of the cancelled migration: %w", err)
	}
	return s.settle(ctx, w)
}

// settle waits until QEMU has let its guest run on, if the guest ran before.
func (s *Source) settle(ctx context.Context, w *watcher) error {
	return w.until(ctx, func() (bool, error) {
		status, err := insist(ctx, s.QEMU, never, s.QEMU.QueryStatus)
		return status.Status != qmp.StatusFinishMigrate, err
	})
}

// finish sends the rest. A QEMU that is late may send it all the same, and the guest then runs elsewhere. So only QEMU
// says that it did not, by its word or its end.
func (s *Source) finish(ctx context.Context, w *watcher, begun time.Time) (Progress, error) {
	ctx = context.WithoutCancel(ctx)
	if err := s.QEMU.MigrateContinue(ctx); err != nil && (s.QEMU.Err() != nil || !errors.Is(err, qmp.ErrTimeout)) {
		return Progress{}, fmt.Errorf("send the rest of the guest: %w", err)
	}
	// QEMU may wait long for the target. The wait ends with QEMU at the latest.
	trails := false
	err := w.until(ctx, func() (done bool, err error) {
		m, err := insist(ctx, s.QEMU, never, s.QEMU.QueryMigrate)
		if err == nil {
			s.tell(w, m, begun)
		}
		if m.Status == qmp.MigrationPostCopy && !trails {
			trails = true
			s.Trails()
		}
		return m.Status == qmp.MigrationCompleted, errors.Join(err, failure(m), broken(m, trails))
	})
	if errors.Is(err, ErrNoReturn) {
		return Progress{}, err
	}
	// QEMU says "completed" before it knows the downtime, and "failed" before the guest runs on.
	if err := errors.Join(err, s.settle(ctx, w)); err != nil {
		return Progress{}, err
	}
	m, err := insist(ctx, s.QEMU, never, s.QEMU.QueryMigrate)
	return progress(m, time.Since(begun)), err
}

// stall finds out that a rest gets no smaller.
type stall struct {
	limit time.Duration
	now   func() time.Time

	least int64
	since time.Time // of least; zero before the first look
}

func (s *stall) look(remaining int64) error {
	now := s.now()
	if s.since.IsZero() || remaining < s.least {
		s.least, s.since = remaining, now
		return nil
	}
	if waited := now.Sub(s.since); waited > s.limit {
		return fmt.Errorf("%w: %d bytes are left, and were no fewer for %s (progressTimeout)", ErrTimeout, s.least, waited.Round(time.Second))
	}
	return nil
}
