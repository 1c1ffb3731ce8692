package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	monitor "github.com/digitalocean/go-qemu/qmp"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/disks"
	"github.com/kubeqemu/kubeqemu/launcher/link"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/launcher/stats"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// This file makes the running machine another, change by change. Package qemuargs says by which steps.

const (
	// stepTimeout bounds QEMU's answer to a step. QEMU opens images in its main loop, and storage may be slow.
	stepTimeout = 60 * time.Second
	// guestTimeout bounds the wait for the guest to let go of a device, and askAgain is the time after which it is asked
	// again: a request that comes before the guest's firmware is done is lost.
	guestTimeout = time.Minute
	askAgain     = 5 * time.Second
)

// become begins a job by which the running machine becomes another.
func (l *launcher) become(ctx context.Context, m *link.Command) {
	var request control.BecomeRequest
	if err := control.Decode(m.Data, &request); err != nil {
		m.Answer(nil, err)
		return
	}
	changes, restart := qemuargs.Become(&l.start.Machine, &request.Machine, l.sets)
	if len(restart) > 0 {
		what := control.Cut(strings.Join(restart, ", "), control.MaxJobError)
		m.Answer(nil, fmt.Errorf("become: needs a restart: %s", what))
		return
	}
	if l.linking {
		m.Answer(nil, errors.New("become: the links of the guest's cards are being set"))
		return
	}
	files, err := exactly(broughtTo(changes), m.Files, "become")
	if err != nil {
		m.Answer(nil, err)
		return
	}
	m.Files = nil
	b := &becoming{client: l.qmp, events: &l.awaited, log: l.Log, was: l.start.Machine, files: files,
		patience: l.DiskPatience, looks: &l.looks,
		changed: func(c qemuargs.Change, taps map[string]string) error { return l.changed(ctx, c, taps) }}
	sets := l.sets
	l.startJob(ctx, m, control.JobBecome, control.JobTargetMachine, int64(len(changes)),
		func(ctx context.Context) (int64, error) {
			fit, err := b.fit(ctx, request.Machine)
			if err != nil {
				return 0, err
			}
			from, next := b.was, request.Machine
			for _, c := range fit {
				from, next = from.Apply(c), next.Apply(c)
			}
			changes, _ := qemuargs.Become(&from, &next, sets)
			return b.run(ctx, append(fit, changes...))
		}, func(error) { disks.CloseAll(files) })
}

// fit returns the changes of the sizes of disks. A disk gets the size for which there is room, and never less than it
// has.
func (b *becoming) fit(ctx context.Context, next qemuargs.Machine) (changes []qemuargs.Change, err error) {
	for _, d := range next.Disks {
		at := slices.IndexFunc(b.was.Disks, func(old qemuargs.Disk) bool { return old.Name == d.Name })
		if at < 0 || d.Image.Size <= b.was.Disks[at].Image.Size {
			continue
		}
		grown := b.was.Disks[at]
		room, has, err := b.looks.Room(ctx, b.client, grown, d.Image.Size)
		if err != nil {
			return nil, fmt.Errorf("change disks[%s]: %w", d.Name, err)
		}
		from, to := b.was, b.was
		to.Disks = slices.Clone(to.Disks)
		to.Disks[at].Image.Size = max(room, has)
		of, _ := qemuargs.Become(&from, &to, nil)
		if room <= has { // nothing grows, and the Machine takes note of the size
			of = []qemuargs.Change{{Part: "disks[" + d.Name + "]", Entry: to.Disks[at]}}
		}
		changes = append(changes, of...)
	}
	return changes, nil
}

// broughtTo returns the names of the files that virt-handler brings for changes.
func broughtTo(changes []qemuargs.Change) (names []string) {
	for _, c := range changes {
		for _, s := range c.Steps {
			if s.File != nil && s.File.Bringer() == qemuargs.ByHandler {
				names = append(names, s.File.String())
			}
		}
	}
	return names
}

// becoming carries out changes beside the loop.
type becoming struct {
	// changed notes each change, and the names of the taps that came with it.
	changed  func(qemuargs.Change, map[string]string) error
	client   *qmp.Client
	events   *awaited
	log      *slog.Logger
	was      qemuargs.Machine
	looks    *disks.Looks
	files    map[string]*os.File
	patience time.Duration
}

// run carries out the changes, and returns how many there were. After each, the Machine is another. A cancel ends it
// between two changes: what QEMU was told cannot be taken back by not waiting.
func (b *becoming) run(ctx context.Context, changes []qemuargs.Change) (done int64, err error) {
	for _, c := range changes {
		switch err := ctx.Err(); {
		case err != nil && done == 0:
			return 0, err
		case err != nil:
			return done, fmt.Errorf("canceled after %d changes", done)
		}
		if err := b.change(context.WithoutCancel(ctx), c); err != nil {
			return done, fmt.Errorf("change %s: %w", c.Part, err)
		}
		var taps map[string]string
		if nic, ok := c.Entry.(qemuargs.NIC); ok {
			taps = stats.Taps([]qemuargs.NIC{nic}, b.files)
		}
		if err := b.changed(c, taps); err != nil {
			return done, err
		}
		done++
	}
	return done, nil
}

// changed makes the loop note a change, and report it. taps are those that came with the change.
func (l *launcher) changed(ctx context.Context, c qemuargs.Change, taps map[string]string) error {
	done := make(chan struct{})
	select {
	case l.results <- func() {
		defer close(done)
		l.sets = setsAfter(l.sets, c)
		l.changeMachine(func(m *qemuargs.Machine) { *m = m.Apply(c) })
		// Another goroutine may read the old source, and keeps what it has seen there.
		old := l.source
		l.source = &stats.Source{Machine: &l.start.Machine, Taps: maps.Clone(old.Taps), PID: old.PID, Client: old.Client,
			Helpers: old.Helpers}
		maps.Copy(l.source.Taps, taps)
		l.link.Report(l.report())
	}:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// setsAfter returns the descriptor sets that QEMU has after a change.
func setsAfter(sets qemuargs.Sets, c qemuargs.Change) qemuargs.Sets {
	sets = maps.Clone(sets)
	for _, s := range c.Steps {
		switch {
		case s.Set == 0:
		case s.File != nil:
			sets[*s.File] = s.Set
		default:
			maps.DeleteFunc(sets, func(_ qemuargs.Inherited, set int) bool { return set == s.Set })
		}
	}
	return sets
}

// change carries out one change. If a step fails, it and the steps before it are undone: a step that QEMU has not
// answered in time may be done later. Once the guest has let go of a device, the change is made: what is left of the
// device is in QEMU alone, and steps that fail then are logged.
func (b *becoming) change(ctx context.Context, c qemuargs.Change) error {
	undo, err := b.prepare(ctx, c)
	if err != nil {
		return err
	}
	gone := false
	for i, step := range c.Steps {
		switch err := b.step(ctx, step); {
		case err == nil:
			gone = gone || step.Wait == qemuargs.WaitDeleted || step.Command == "blockdev-del"
		case gone:
			b.log.Warn("cannot clean up after a device", "part", c.Part, "step", step.String(), "error", err)
		default:
			done := c.Steps[:i]
			if errors.Is(err, context.DeadlineExceeded) {
				done = c.Steps[:i+1]
			}
			b.undo(context.WithoutCancel(ctx), done)
			undo()
			return err
		}
	}
	if gone {
		b.cleanUp(c)
	}
	return nil
}

// cleanUp removes what was made for a disk that is gone.
func (b *becoming) cleanUp(c qemuargs.Change) {
	for _, d := range b.was.Disks {
		if c.Part != "disks["+d.Name+"]" {
			continue
		}
		if err := disks.Unplugged(d); err != nil && !errors.Is(err, fs.ErrNotExist) {
			b.log.Warn("cannot remove what was made for a disk", "disk", d.Name, "error", err)
		}
	}
}

// prepare makes and opens what a disk needs that comes. undo removes what was made.
func (b *becoming) prepare(ctx context.Context, c qemuargs.Change) (undo func(), err error) {
	undo = func() {}
	disk, comes := c.Entry.(qemuargs.Disk)
	if !comes || !slices.ContainsFunc(c.Steps, func(s qemuargs.Step) bool { return s.Command == "blockdev-add" }) {
		return undo, nil
	}
	file, err := disks.Plug(ctx, disk, b.was.UUID, b.patience, b.log)
	if err != nil {
		return undo, err
	}
	if file != nil {
		b.files[qemuargs.Inherited{Kind: qemuargs.InheritedDisk, Name: disk.Name}.String()] = file
	}
	return func() {
		if err := disks.Unplugged(disk); err != nil {
			b.log.Warn("cannot remove what was made for a disk", "disk", disk.Name, "error", err)
		}
	}, nil
}

// undo takes back steps, from the last. A step that cannot be taken back is logged.
func (b *becoming) undo(ctx context.Context, steps []qemuargs.Step) {
	for _, step := range slices.Backward(steps) {
		if step.Undo == nil {
			continue
		}
		if err := b.step(ctx, *step.Undo); err != nil && step.Command != "getfd" { // a backend may have taken the file
			b.log.Warn("cannot take back a step", "step", step.String(), "error", err)
		}
	}
}

// step carries out one step, and waits for what the step waits for.
func (b *becoming) step(ctx context.Context, step qemuargs.Step) error {
	var heard <-chan struct{}
	if step.Wait != qemuargs.WaitNothing {
		var forget func()
		heard, forget = b.events.await(string(step.Wait), step.Device)
		defer forget()
	}
	err := b.tell(ctx, step)
	if step.Wait == qemuargs.WaitDeleted && isGone(err) {
		return nil // it went when nobody waited any more
	}
	if err != nil || heard == nil || b.isOpen(ctx, step) {
		return err
	}
	return b.await(ctx, step, heard)
}

// await waits for the event of a step, and asks again while it does not come.
func (b *becoming) await(ctx context.Context, step qemuargs.Step, heard <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, guestTimeout)
	defer cancel()
	again := time.NewTicker(askAgain)
	defer again.Stop()
	for {
		select {
		case <-heard:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("the guest has not let go of %s: %w", step.Device, ctx.Err())
		case <-again.C:
		}
		switch err := b.tell(ctx, byForce(step)); {
		case isGone(err), err == nil && b.isOpen(ctx, step):
			return nil
		case err != nil && ctx.Err() == nil:
			b.log.Debug("ask the guest again", "step", step.String(), "error", err)
		}
	}
}

// isOpen reports whether a step waits for a drive that is open already: QEMU tells nothing then.
func (b *becoming) isOpen(ctx context.Context, step qemuargs.Step) bool {
	if step.Wait != qemuargs.WaitTray {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	open, err := b.client.TrayIsOpen(ctx, step.Device)
	if err != nil {
		b.log.Debug("look whether a drive is open", "device", step.Device, "error", err)
	}
	return open
}

// byForce returns a step as it is asked again: a drive that the guest holds shut is opened by force.
func byForce(step qemuargs.Step) qemuargs.Step {
	if step.Wait == qemuargs.WaitTray {
		step.Arguments = map[string]any{"id": step.Device, "force": true}
	}
	return step
}

// isGone reports whether QEMU says that there is no such device.
func isGone(err error) bool {
	var refused *qmp.Error
	return errors.As(err, &refused) && refused.Class == "DeviceNotFound"
}

// awaited are the events of QEMU's that steps wait for.
type awaited struct {
	mu    sync.Mutex
	waits map[awaitedEvent]chan struct{}
}

// awaitedEvent is an event about a device.
type awaitedEvent struct{ name, device string }

// await returns a channel that is closed when QEMU tells the event. forget ends the wait. One step waits for an event.
func (a *awaited) await(name, device string) (heard <-chan struct{}, forget func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waits == nil {
		a.waits = map[awaitedEvent]chan struct{}{}
	}
	event, wait := awaitedEvent{name, device}, make(chan struct{})
	a.waits[event] = wait
	return wait, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.waits, event)
	}
}

// note takes an event of QEMU's.
func (a *awaited) note(e monitor.Event) {
	device, _ := e.Data["device"].(string)
	if id, ok := e.Data["id"].(string); ok && e.Event == string(qemuargs.WaitTray) {
		device = id // the device of that event is the name of a drive of -drive
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	event := awaitedEvent{e.Event, device}
	if wait, ok := a.waits[event]; ok {
		close(wait)
		delete(a.waits, event)
	}
}

// tell gives QEMU the command of a step. A cancel does not end it: QEMU would do it all the same.
func (b *becoming) tell(ctx context.Context, step qemuargs.Step) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
	defer cancel()
	var along []*os.File
	if step.File != nil {
		file := b.files[step.File.String()]
		if file == nil {
			return fmt.Errorf("%s: there is no file %s", step.Command, step.File)
		}
		along = append(along, file)
	}
	return b.client.Execute(ctx, step.Command, step.Arguments, nil, along...)
}
