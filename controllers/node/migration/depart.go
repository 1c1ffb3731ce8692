package migration

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/peers"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Peers are the virt-handlers of other nodes. A *peers.Client reaches them.
type Peers interface {
	Prepare(ctx context.Context, to peers.Destination, offer *peers.Offer) (*peers.Answer, error)
	State(ctx context.Context, to peers.Destination) (net.Conn, error)
	Disk(ctx context.Context, to peers.Destination, disk string) (net.Conn, error)
	Receive(ctx context.Context, to peers.Destination) error
}

// Departures send the guests of this node that move to other nodes.
type Departures struct {
	Node  *Node
	Peers Peers

	ctx    context.Context
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu       sync.Mutex
	underway map[types.UID]*departure // by migration
}

// NewDepartures makes Departures, which end with Close.
func NewDepartures(node *Node, to Peers) *Departures {
	d := &Departures{Node: node, Peers: to, underway: map[types.UID]*departure{}}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// Close ends what goes on here, and waits for it. The next virt-handler goes on with the migrations: it cancels
// those that are not decided.
func (d *Departures) Close() {
	d.mu.Lock()
	d.cancel() // under mu, so that nothing begins any more
	d.mu.Unlock()
	d.wait.Wait()
}

// departure is a guest that moves to another node.
type departure struct {
	of  *Departures
	log logr.Logger
	// vmi is the VMI as it was when the departure began.
	vmi *v1.VirtualMachineInstance
	pod types.NamespacedName
	// stop ends the copying; its cause is why.
	stop context.CancelCauseFunc
	// open are the channels to the target.
	open     channels
	postCopy postCopy
}

var (
	errDecided     = errors.New("the migration was ended")
	errInterrupted = errors.New("the source's virt-handler was restarted while the guest moved")
)

// Step takes a guest of this node that is to move a step further. It waits for nothing.
func (d *Departures) Step(vmi *v1.VirtualMachineInstance, launcher *sessions.Session) {
	// Also after the migration's end: the guest may still stand, because virt-handler was not there.
	m := vmi.Status.MigrationState
	if m == nil || m.SourceNode != d.Node.Name || m.SourcePod != launcher.Pod.Name {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if under := d.underway[m.MigrationUID]; under != nil {
		if m.Decision == v1.DecisionSource {
			under.stop(errDecided)
		}
		return
	}
	fresh, do := todo(m, launcher.State())
	if !do || d.ctx.Err() != nil {
		return
	}
	ctx, stop := context.WithCancelCause(d.ctx)
	under := &departure{of: d, vmi: vmi.DeepCopy(), pod: launcher.Pod, stop: stop,
		log: ctrl.Log.WithName("departures").
			WithValues("vmi", client.ObjectKeyFromObject(vmi).String(), "migration", m.MigrationUID)}
	d.underway[m.MigrationUID] = under
	d.wait.Go(func() {
		defer stop(nil)
		under.run(ctx, fresh)
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.underway, m.MigrationUID)
	})
}

// StepLeft ends the launcher that a guest has left for another launcher of this node, if an earlier virt-handler has
// not done that. Where the guest went to another node, the reconciler calls Step when it looks for launchers whose
// VMI is gone.
func (d *Departures) StepLeft(vmi *v1.VirtualMachineInstance) {
	m := vmi.Status.MigrationState
	if m == nil || m.SourceNode != d.Node.Name || m.TargetNode != d.Node.Name || m.SourcePod == vmi.LauncherPod() {
		return
	}
	if left := d.Node.Sessions.Get(types.NamespacedName{Namespace: vmi.Namespace, Name: m.SourcePod}); left != nil {
		d.Step(vmi, left)
	}
}

// todo reports whether this node must act on a migration that it has no work in progress for (do), and whether nobody
// has begun it yet (fresh). If it is not fresh, an earlier virt-handler began it. It is pure.
func todo(m *v1.VirtualMachineInstanceMigrationState, state control.StateReport) (fresh, do bool) {
	begun := m.SourceState != nil || state.State == control.StateMoved || sending(state)
	switch {
	case m.Decision == "" && !begun:
		return true, m.TargetState != nil && m.TargetState.NodeAddress != "" &&
			(state.State == control.StateRunning || state.State == control.StatePaused)
	case m.Decision == "":
		return false, true
	case m.Decision == v1.DecisionTarget: // a guest that still runs here is ended
		return false, state.State != control.StateExited
	}
	return false, state.State == control.StateMoved || sending(state)
}

// sending reports whether a launcher sends its guest.
func sending(state control.StateReport) bool {
	job := control.NewestJob(state.Jobs, control.JobMigrate, control.JobTargetGuest)
	return job != nil && !job.Finished()
}

// run sends the guest, and sees to it that the guest runs where it is decided.
func (d *departure) run(ctx context.Context, fresh bool) {
	defer d.open.close()
	var failed error
	if fresh {
		d.log.Info("a guest is to move", "to", d.vmi.Status.MigrationState.TargetNode)
		failed = d.send(ctx)
	} else {
		failed = d.interrupt(errInterrupted)
	}
	if d.of.ctx.Err() != nil {
		return // virt-handler ends
	}
	if failed != nil {
		d.log.Info("a guest does not move", "reason", control.Short(failed.Error()))
	}
	d.conclude(d.of.ctx, failed)
}

// launcher returns the source's launcher, or nil while it is not connected.
func (d *departure) launcher() *sessions.Session { return d.of.Node.Sessions.Get(d.pod) }
