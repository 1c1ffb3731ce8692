package migration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/peers"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/controllers/node/start"
	"github.com/kubeqemu/kubeqemu/controllers/stateclaim"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
	"github.com/kubeqemu/kubeqemu/internal/timer"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

const (
	// progressInterval is the time between two writes of the progress.
	progressInterval = 5 * time.Second
	// cancelTimeout is how long a launcher may take to give a migration up.
	cancelTimeout = 2 * time.Minute
)

// channels are the connections between the channels of the two launchers.
type channels struct {
	pairs []*pair
	// pace is that of all of them together.
	pace *peers.Pace
	// carried is how many bytes were carried to the target.
	carried atomic.Int64
}

// pair is a channel of the launcher here, and the connection to that of the target.
type pair struct {
	done chan struct{}
	end  context.CancelFunc
}

// connect carries bytes between two ends until one of them ends.
func (c *channels) connect(launcher, peer net.Conn) {
	ctx, cancel := context.WithCancel(context.Background())
	p := &pair{make(chan struct{}), cancel}
	c.pairs = append(c.pairs, p)
	go func() {
		defer close(p.done)
		peers.Relay(ctx, launcher, &counted{peer, &c.carried}, c.pace)
	}()
}

// close ends the connections, one after the other: a launcher with many files to be closed at once loses its session.
func (c *channels) close() {
	for _, p := range c.pairs {
		p.end()
		<-p.done
	}
	c.pairs = nil
}

// counted counts the bytes that are written.
type counted struct {
	net.Conn
	bytes *atomic.Int64
}

// NetConn returns the connection itself.
func (c *counted) NetConn() net.Conn { return c.Conn }

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.bytes.Add(int64(n))
	return n, err
}

// send asks the launcher to send its guest, and returns when the launcher has done so. After an error the guest runs
// here, or it is not known whether it has arrived: see conclude.
func (d *departure) send(ctx context.Context) error {
	launcher := d.launcher()
	if launcher == nil {
		return control.ErrClosed
	}
	machine := launcher.State().Machine
	if machine == nil {
		return errors.New("the launcher reports no Machine")
	}
	m := d.vmi.Status.MigrationState
	to := peers.Destination{Address: m.TargetState.NodeAddress, Node: m.TargetNode, Migration: m.MigrationUID}
	offer := &peers.Offer{Version: peers.Version, Namespace: d.vmi.Namespace, Name: d.vmi.Name, UID: d.vmi.UID,
		Machine: *machine, QEMUVersion: launcher.QEMUVersion, CPU: d.of.Node.CPU}
	var err error
	if offer.Claims, err = movedSizes(ctx, launcher, d.vmi); err != nil {
		return err
	}
	offer.Host, offer.Wishes = hostOf(ctx, launcher), d.wishes(launcher)
	answer, err := d.prepare(ctx, to, offer)
	if err != nil {
		return err
	}
	d.postCopy.hear(answer)
	d.open.pace = peers.NewPace(m.MigrationConfiguration.Bandwidth())
	if err := d.connect(ctx, launcher, to); err != nil {
		return err
	}
	bounds := limits(m.MigrationConfiguration, d.vmi, sizesOf(machine), atMostClaims(offer.Claims, d.vmi))
	bounds.PostCopy = d.postCopy.granted
	// The launcher holds these limits itself. But a launcher is a tenant's, and a migration takes a place that others
	// wait for.
	most := time.Duration(bounds.CompletionSeconds)*time.Second + launcherSlack
	if bounds.PostCopy {
		most += postCopyPatience
	}
	ctx, cancel := context.WithTimeoutCause(ctx, most,
		fmt.Errorf("the launcher did not end the migration within %s", most))
	defer cancel()
	return d.copy(ctx, launcher, bounds)
}

// copiesVariables reports whether a migration takes the UEFI variables from one claim to another.
func copiesVariables(vmi *v1.VirtualMachineInstance) bool {
	return stateclaim.IsCopied(vmi.Status.MigrationState) && vmi.Spec.Domain.PersistentVariables()
}

// copied returns what a migration copies beside the guest's memory and devices: disks, and the UEFI variables.
func copied(vmi *v1.VirtualMachineInstance) []string {
	out := vmi.CopiedDisks()
	if copiesVariables(vmi) {
		out = append(out, control.VariablesDisk)
	}
	return out
}

const (
	// maxCopied bounds the bytes of a migration, so that the time for them is a number.
	maxCopied = 64 << 40
	// maxSaid bounds, in bytes, what a launcher says of the sizes of all disks of which only it knows the sizes: those
	// of container disks. Only what a guest has written to them is copied.
	maxSaid = 32 << 30
)

// launcherSlack is how much longer than its own limits a launcher may take.
const launcherSlack = time.Minute

const (
	// offerPatience is how long a target may take until it can look at an offer. Its virt-handler, or its launcher, may
	// be about to connect.
	offerPatience = 20 * time.Second
	offerInterval = time.Second
)

// prepare offers the guest to the target.
func (d *departure) prepare(ctx context.Context, to peers.Destination, offer *peers.Offer) (*peers.Answer, error) {
	until := d.of.Node.Clock.Now().Add(offerPatience)
	for {
		answer, err := d.of.Peers.Prepare(ctx, to, offer)
		var refused *handlerapi.Error
		if err == nil || errors.As(err, &refused) &&
			refused.Code != http.StatusServiceUnavailable && refused.Code != http.StatusForbidden ||
			d.of.Node.Clock.Now().After(until) || !timer.Wait(offerInterval, ctx.Done()) {
			return answer, err
		}
	}
}

// connect opens the channels, and connects those of the launcher here with those of the target's.
func (d *departure) connect(ctx context.Context, launcher *sessions.Session, to peers.Destination) error {
	pair := func(command string, arguments any, peer net.Conn, err error) error {
		if err != nil {
			return err
		}
		stream, err := launcher.Stream(ctx, command, arguments)
		if err != nil {
			peer.Close()
			return err
		}
		d.open.connect(stream, peer)
		return nil
	}
	state, err := d.of.Peers.State(ctx, to)
	if err := pair(control.CommandOpenChannel, nil, state, err); err != nil {
		return err
	}
	for _, disk := range copied(d.vmi) {
		peer, err := d.of.Peers.Disk(ctx, to, disk)
		if err := pair(control.CommandMirrorDisk, control.DiskRequest{Disk: disk}, peer, err); err != nil {
			return fmt.Errorf("disk %s: %w", disk, err)
		}
	}
	return d.of.Peers.Receive(ctx, to)
}

// sizesOf returns the sizes of those disks of a Machine that end with its launcher. A migration copies them.
func sizesOf(machine *qemuargs.Machine) map[string]int64 {
	sizes := map[string]int64{}
	for _, disk := range machine.Disks {
		if disk.Overlay != nil {
			sizes[disk.Name] = disk.Overlay.VirtualSize
		} else if disk.Image.Volume == "" {
			sizes[disk.Name] = disk.Image.Create
		}
	}
	return sizes
}

// bytesOf returns how many bytes at most a migration copies of the disks that end with the launcher. sizes are the
// launcher's word, and a launcher is a tenant's. So the VMI says which disks there are, and bounds those whose size it
// has.
func bytesOf(vmi *v1.VirtualMachineInstance, sizes map[string]int64) int64 {
	bytes, said := int64(0), int64(0)
	for i := range vmi.Spec.Volumes {
		volume := &vmi.Spec.Volumes[i]
		size := min(max(sizes[volume.Name], 0), maxCopied)
		switch info := vmi.Status.ClaimInfo(volume.Name); {
		case volume.EmptyDisk != nil:
			bytes += min(size, max(volume.EmptyDisk.Capacity.Value(), 0))
		case info != nil:
			bytes += min(size, max(info.Requests.Storage().Value(), info.Capacity.Storage().Value(), 0))
		default:
			said = min(said+size, maxSaid)
		}
		bytes = min(bytes, maxCopied)
	}
	return bytes + said
}

// limits returns the limits of a VMI's migration. sizes are what the launcher says of its own disks (sizesOf). claims
// are the sizes of the disks that are copied to other claims.
func limits(c *v1.MigrationConfiguration, vmi *v1.VirtualMachineInstance,
	sizes, claims map[string]int64) control.MigrateRequest {
	bytes := min(start.GuestMemory(vmi), maxCopied) + bytesOf(vmi, sizes)
	for _, size := range claims {
		bytes = min(bytes+min(max(size, 0), maxCopied), maxCopied)
	}
	return control.MigrateRequest{BytesPerSecond: c.Bandwidth(), DowntimeMilliseconds: c.Downtime().Milliseconds(),
		AutoConverge: c.AutoConverge(), CompletionSeconds: int64(c.Completion(bytes) / time.Second),
		StallSeconds: int64(c.Progress() / time.Second)}
}

// copy asks the launcher to send the guest to the channels. It returns nil once the guest may have arrived.
func (d *departure) copy(ctx context.Context, launcher *sessions.Session, request control.MigrateRequest) error {
	if err := d.begin(ctx); err != nil {
		return err
	}
	var reply control.JobReply
	if err := launcher.Call(ctx, control.CommandMigrate, request, &reply); err != nil {
		return err
	}
	idle := stall{limit: time.Duration(request.StallSeconds)*time.Second + launcherSlack, now: d.of.Node.Clock.Now}
	at := now
	for {
		state, err := d.wait(ctx, launcher, reply.ID, at)
		switch {
		case err == nil && state.State == control.StateMoved:
			return nil
		case err == nil && ended(state, reply.ID) == nil:
			d.goOnByPostCopy(ctx, launcher, reply.ID)
			at = soon
			continue
		case err == nil:
			return outcome(state, reply.ID)
		case d.of.ctx.Err() != nil: // the next virt-handler goes on
			return errInterrupted
		case ctx.Err() != nil:
			return d.interrupt(context.Cause(ctx))
		case !errors.Is(err, errNotYet):
			return err
		case idle.look(d.open.carried.Load()):
			return d.interrupt(fmt.Errorf("nothing was sent for %s", idle.limit))
		}
		d.report(ctx, func(s *v1.MigrationSourceState) {
			s.Progress, s.PostCopyRefused = progress(state.Migration), d.postCopy.refused
		})
		at = soonOrDue
	}
}

// begin writes that the copying begins, before it does. The target cannot have the guest before. Without this word of
// the source, virt-controller deletes nothing that the guest leaves here, whatever the target says.
func (d *departure) begin(ctx context.Context) error {
	now, decided := metav1.NewTime(d.of.Node.Clock.Now()), false
	vmi, err := d.of.Node.amend(ctx, d.vmi, func(_ *v1.VirtualMachineInstance,
		s *v1.VirtualMachineInstanceMigrationState) bool {
		if decided = s.Decision != ""; decided {
			return false
		}
		state := sourceState(s).DeepCopy()
		state.StartTimestamp = &now
		s.SourceState = state
		return true
	})
	if err == nil && decided {
		err = errDecided
	}
	if err != nil {
		return fmt.Errorf("begin to copy the guest: %w", err)
	}
	d.vmi = vmi
	return nil
}

// stall finds out that nothing is sent any more.
type stall struct {
	limit time.Duration
	now   func() time.Time

	carried int64
	since   time.Time
}

// look reports whether nothing was sent for longer than the limit.
func (s *stall) look(carried int64) bool {
	if now := s.now(); s.since.IsZero() || carried != s.carried {
		s.carried, s.since = carried, now
	}
	return s.now().Sub(s.since) > s.limit
}

var errNotYet = errors.New("the guest is still being copied")

// next is when the next report is due: at once, after progressInterval, or then and as soon as only post-copy brings
// the migration to its end.
type next int

const (
	now next = iota
	soon
	soonOrDue
)

// wait waits until a job has ended, or the guest may have arrived, but for no longer than until the next report.
func (d *departure) wait(ctx context.Context, launcher *sessions.Session, job uint64,
	at next) (control.StateReport, error) {
	interval := progressInterval
	if at == now {
		interval = 0
	}
	ctx, cancel := context.WithTimeoutCause(ctx, interval, errNotYet)
	defer cancel()
	due := at == soonOrDue && d.postCopy.granted && !d.postCopy.begun
	return launcher.Await(ctx, func(s control.StateReport) bool {
		return s.State == control.StateMoved || ended(s, job) != nil || due && s.Migration != nil && s.Migration.PostCopyDue
	})
}

// ended returns a job that has ended, or nil.
func ended(state control.StateReport, id uint64) *control.Job {
	job := control.NewestJob(state.Jobs, control.JobMigrate, control.JobTargetGuest)
	if job == nil || job.ID < id || !job.Finished() {
		return nil
	}
	return job
}

// outcome returns the error of a job that has ended.
func outcome(state control.StateReport, id uint64) error {
	switch job := ended(state, id); job.State {
	case control.JobDone:
		return nil
	case control.JobCanceled:
		return errDecided
	default:
		return errors.New(control.Short(job.Error))
	}
}

// interrupt asks the launcher to give the migration up, and returns why. It returns nil if the guest may have
// arrived.
func (d *departure) interrupt(why error) error {
	launcher := d.launcher()
	if launcher == nil {
		return why
	}
	ctx, cancel := context.WithTimeout(d.of.ctx, cancelTimeout)
	defer cancel()
	state := launcher.State()
	job := control.NewestJob(state.Jobs, control.JobMigrate, control.JobTargetGuest)
	if job != nil && !job.Finished() && state.State != control.StateMoved {
		if err := launcher.Call(ctx, control.CommandCancelJob, control.JobRequest{ID: job.ID}, nil); err != nil {
			d.log.Info("cannot cancel the sending of a guest", "reason", control.Short(err.Error()))
		}
		state, _ = launcher.Await(ctx, func(s control.StateReport) bool {
			return s.State == control.StateMoved || ended(s, job.ID) != nil
		})
	}
	if state.State == control.StateMoved {
		return nil
	}
	return why
}

// progress returns what a launcher reports, in the words of the API.
func progress(r *control.MigrationReport) *v1.MigrationProgress {
	if r == nil {
		return nil
	}
	return &v1.MigrationProgress{TransferredBytes: r.Transferred, RemainingBytes: r.Remaining, TotalBytes: r.Total,
		DirtyBytesPerSecond: r.DirtyBytesPerSecond, Milliseconds: r.Milliseconds,
		DowntimeMilliseconds: r.DowntimeMilliseconds}
}

// report writes what is new into the VMI's status. A report that cannot be written is left out.
func (d *departure) report(ctx context.Context, change func(*v1.MigrationSourceState)) {
	now, err := d.of.Node.amend(ctx, d.vmi, func(_ *v1.VirtualMachineInstance,
		s *v1.VirtualMachineInstanceMigrationState) bool {
		state := sourceState(s).DeepCopy()
		change(state)
		s.SourceState = state
		return true
	})
	if err != nil {
		d.log.V(1).Info("cannot report how far a guest is", "reason", err.Error())
		return
	}
	d.vmi = now
}

func sourceState(s *v1.VirtualMachineInstanceMigrationState) *v1.MigrationSourceState {
	if s.SourceState == nil {
		return &v1.MigrationSourceState{}
	}
	return s.SourceState
}
