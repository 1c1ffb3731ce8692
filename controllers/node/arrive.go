package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/handover"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/controllers/node/accelerator"
	"github.com/kubeqemu/kubeqemu/controllers/node/peers"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/netsetup"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// Arrivals receives the guests that come to this node from others. It reconciles the VMIs whose migration names
// this node as its target, and is the peers.Target of this node.
type Arrivals struct {
	Node *Reconciler
	// Coming is a cache of the VMIs whose last migration names this node as its target. Most of them are not in
	// the cache of Node's client, because their guests are on other nodes.
	Coming client.Reader
	// Address is where the virt-handlers of other nodes reach this virt-handler.
	Address string
	// CPU is this node's processor.
	CPU peers.CPU

	changed chan event.GenericEvent

	// synced is closed once Coming has been filled.
	synced chan struct{}

	mu      sync.Mutex
	offered map[types.UID]*arrival // by migration
	// preparing are the migrations whose offers are looked at.
	preparing map[types.UID]bool
}

// arrival is a guest that a source has offered.
type arrival struct {
	launcher *sessions.Session
	// opened are stateChannel, reception, and the disks' names, as far as the source has asked for them. It may ask for
	// each once.
	opened []string
	// disks are those that the source may copy.
	disks []string
	// refused is why QEMU did not let the guest run.
	refused string
	// silent is when QEMU first did not say whether it lets the guest run that has come with all of its memory.
	silent time.Time
}

var _ peers.Target = &Arrivals{}

// Setup registers the reconciler with a manager. coming is the cache that Coming reads.
func (a *Arrivals) Setup(mgr ctrl.Manager, coming cache.Cache) error {
	if err := coming.IndexField(context.Background(), &v1.VirtualMachineInstance{}, PodIndex, IndexByPod); err != nil {
		return fmt.Errorf("index VMIs by pod: %w", err)
	}
	a.changed, a.synced = make(chan event.GenericEvent, accelerator.MaxSlots), make(chan struct{})
	err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		if coming.WaitForCacheSync(ctx) {
			close(a.synced)
		}
		return nil
	}))
	if err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("arrivals").
		WatchesRawSource(source.Kind(coming, &v1.VirtualMachineInstance{}, &handler.TypedEnqueueRequestForObject[*v1.VirtualMachineInstance]{})).
		WatchesRawSource(source.Channel(a.changed, &handler.EnqueueRequestForObject{})).
		// A launcher that does not answer holds one worker, and so delays no other guest.
		WithOptions(kit.Options(accelerator.MaxSlots)).
		Complete(a)
}

// Notify queues the VMI that a launcher's guest is to come from, after the launcher has reported something. Before Coming
// is filled it does nothing: each VMI is queued as it arrives there.
func (a *Arrivals) Notify(ctx context.Context, pod types.NamespacedName) {
	select {
	case <-a.synced:
	default:
		return
	}
	var vmis v1.VirtualMachineInstanceList
	if err := a.Coming.List(ctx, &vmis, client.InNamespace(pod.Namespace), client.MatchingFields{PodIndex: pod.Name}); err != nil {
		ctrl.Log.Error(err, "find VMIs whose guests come")
		return
	}
	for i := range vmis.Items {
		select {
		case a.changed <- event.GenericEvent{Object: &vmis.Items[i]}:
		case <-ctx.Done():
		}
	}
}

// Reconcile takes one guest that comes to this node a step further. Each step depends only on the VMI's status and
// on what the launcher reports, so that a virt-handler that was restarted goes on where the last one was.
func (a *Arrivals) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	vmi := &v1.VirtualMachineInstance{}
	if err := a.Coming.Get(ctx, request.NamespacedName, vmi); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	m := vmi.Migration()
	if m == nil || m.TargetNode != a.Node.NodeName || vmi.IsFinal() {
		return ctrl.Result{}, nil
	}
	launcher, err := a.launcher(vmi)
	if why := a.refusal(vmi); why != "" && m.Decision == v1.DecisionTarget {
		err = a.giveBack(ctx, vmi, why)
		launcher = nil
	}
	if launcher == nil || err != nil {
		return ctrl.Result{}, over(err) // the launcher's hello, or the pod's address, brings us back
	}
	switch m.Decision {
	case "":
		err = a.undecided(ctx, vmi, launcher)
	case v1.DecisionTarget:
		err = a.decided(ctx, vmi, launcher)
	}
	return ctrl.Result{}, over(err)
}

// over drops the error of a migration that has ended.
func over(err error) error {
	if errors.Is(err, errOver) {
		return nil
	}
	return err
}

// launcher returns the launcher of the target pod, or nil while it is not connected, or its pod has no address yet.
func (a *Arrivals) launcher(vmi *v1.VirtualMachineInstance) (*sessions.Session, error) {
	pod := types.NamespacedName{Namespace: vmi.Namespace, Name: vmi.Status.MigrationState.TargetPod}
	launcher := a.Node.Sessions.Get(pod)
	if launcher == nil {
		return nil, nil
	}
	ips, err := vouchedFor(launcher, vmi)
	if err != nil || len(ips) == 0 {
		return nil, err
	}
	return launcher, nil
}

// undecided says where the source may connect, and decides once the launcher has all of the guest.
func (a *Arrivals) undecided(ctx context.Context, vmi *v1.VirtualMachineInstance, launcher *sessions.Session) error {
	state := launcher.State()
	vmi, err := a.Node.amend(ctx, vmi, func(vmi *v1.VirtualMachineInstance, s *v1.VirtualMachineInstanceMigrationState) bool {
		// A guest that comes by post-copy can shut down in order only here.
		if s.Decision != "" || vmi.DeletionTimestamp != nil && !s.PostCopy() || vmi.IsFinal() {
			return false
		}
		before := targetState(s)
		now := *before
		now.NodeAddress = a.Address
		switch state.State {
		case control.StateReceiving:
			now.DomainDetected = true
		case control.StateReceived:
			now.DomainDetected, s.Decision = true, v1.DecisionTarget
		case control.StateExited:
			now.Failure = "the target's QEMU has ended"
			if state.Failure != "" {
				now.Failure += ": " + control.Printable(state.Failure, maxMessage)
			}
		}
		s.TargetState = &now
		return now != *before || s.Decision != ""
	})
	if err != nil {
		return err
	}
	if vmi.Status.MigrationState.Decision == v1.DecisionTarget {
		return a.decided(ctx, vmi, launcher)
	}
	return nil
}

func targetState(s *v1.VirtualMachineInstanceMigrationState) *v1.MigrationTargetState {
	if s.TargetState == nil {
		return &v1.MigrationTargetState{}
	}
	return s.TargetState
}

// decided lets the guest run, and says so.
func (a *Arrivals) decided(ctx context.Context, vmi *v1.VirtualMachineInstance, launcher *sessions.Session) error {
	if targetState(vmi.Status.MigrationState).DomainReadyTimestamp != nil {
		return nil
	}
	switch launcher.State().State {
	case control.StateReceived:
		if refused, err := a.run(ctx, vmi, launcher); err != nil {
			return errors.Join(err, a.endSilent(ctx, vmi, launcher))
		} else if refused != "" && receiving(launcher.State()) {
			// The source can take the guest back once it has sent all of the memory. QEMU may let the guest run before.
			return fmt.Errorf("let the guest run that has come before its memory: %s", refused)
		} else if refused != "" {
			a.refuse(vmi, launcher, refused)
			return a.giveBack(ctx, vmi, refused)
		}
	case control.StateRunning, control.StatePaused:
	case control.StateExited:
		// A launcher that is kept after the failure would hold the migration, and its place, until somebody deletes its pod.
		return endAtOnce(ctx, launcher)
	default:
		return nil
	}
	if receiving(launcher.State()) {
		return nil // the launcher says when its memory is here
	}
	now := metav1.NewTime(a.Node.Clock.Now())
	_, err := a.Node.amend(ctx, vmi, func(_ *v1.VirtualMachineInstance, s *v1.VirtualMachineInstanceMigrationState) bool {
		if s.Decision != v1.DecisionTarget || targetState(s).DomainReadyTimestamp != nil {
			return false
		}
		state := *targetState(s)
		state.DomainReadyTimestamp = &now
		s.TargetState = &state
		return true
	})
	return err
}

// run lets the guest run. refused is why QEMU did not.
func (a *Arrivals) run(ctx context.Context, vmi *v1.VirtualMachineInstance, launcher *sessions.Session) (refused string, err error) {
	var reply control.RunReply
	if err := launcher.Call(ctx, control.CommandRun, control.RunRequest{Paused: pausedByUser(vmi)}, &reply); err != nil {
		return "", fmt.Errorf("let the guest run that has come: %w", err)
	}
	return control.Short(reply.Refused), nil
}

// refuse keeps why QEMU did not let a guest run, until that is written: the launcher ends, and says it once.
func (a *Arrivals) refuse(vmi *v1.VirtualMachineInstance, launcher *sessions.Session, why string) {
	a.remember(vmi.Status.MigrationState.MigrationUID, &arrival{launcher: launcher, refused: why})
}

func (a *Arrivals) refusal(vmi *v1.VirtualMachineInstance) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if known := a.offered[vmi.Status.MigrationState.MigrationUID]; known != nil {
		return known.refused
	}
	return ""
}

// giveBack decides for the source, because QEMU did not let the guest run here.
func (a *Arrivals) giveBack(ctx context.Context, vmi *v1.VirtualMachineInstance, why string) error {
	_, err := a.Node.amend(ctx, vmi, func(now *v1.VirtualMachineInstance, s *v1.VirtualMachineInstanceMigrationState) bool {
		if s.Decision != v1.DecisionTarget || targetState(s).DomainReadyTimestamp != nil || now.IsFinal() {
			return false
		}
		state := *targetState(s)
		state.Failure = "the target's QEMU did not let the guest run: " + why
		s.TargetState, s.Decision = &state, v1.DecisionSource
		return true
	})
	return err
}

// Expects says whether a guest is to come from a node now.
func (a *Arrivals) Expects(ctx context.Context, node string) bool {
	_, err := a.expected(ctx, func(m *v1.VirtualMachineInstanceMigrationState) bool { return m.SourceNode == node })
	return err == nil
}

// expected returns the VMI whose guest is to come by a migration that fits.
func (a *Arrivals) expected(ctx context.Context, fits func(*v1.VirtualMachineInstanceMigrationState) bool) (*v1.VirtualMachineInstance, error) {
	var vmis v1.VirtualMachineInstanceList
	if err := a.Coming.List(ctx, &vmis, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("find the guests that come: %w", err)
	}
	for i := range vmis.Items {
		vmi := &vmis.Items[i]
		m := vmi.Migration()
		if m != nil && m.TargetNode == a.Node.NodeName && m.Decision == "" && targetState(m).Failure == "" && vmi.DeletionTimestamp == nil && !vmi.IsFinal() && fits(m) {
			return vmi.DeepCopy(), nil
		}
	}
	return nil, peers.ErrUnexpected
}

// receiveTimeout is how long QEMU may take until it waits for the guest.
const receiveTimeout = 2 * time.Minute

// Prepare has the target's launcher wait for a guest.
func (a *Arrivals) Prepare(ctx context.Context, node string, migration types.UID, offer *peers.Offer) (*peers.Answer, error) {
	vmi, err := a.expected(ctx, func(m *v1.VirtualMachineInstanceMigrationState) bool {
		return m.SourceNode == node && m.MigrationUID == migration
	})
	if err != nil {
		return nil, err
	}
	if vmi.Namespace != offer.Namespace || vmi.Name != offer.Name || vmi.UID != offer.UID {
		return nil, peers.ErrUnexpected
	}
	launcher, err := a.launcher(vmi)
	if err != nil {
		return nil, err
	}
	if launcher == nil || !a.begin(migration) {
		return nil, peers.ErrNotYet
	}
	defer a.done(migration)
	if err := a.start(ctx, vmi, launcher, offer); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, receiveTimeout, fmt.Errorf("QEMU did not wait for the guest within %s", receiveTimeout))
	defer cancel()
	state, err := launcher.Await(ctx, func(s control.StateReport) bool {
		return s.State != control.StateWaiting && s.State != control.StatePreparing
	})
	if err != nil {
		return nil, fmt.Errorf("start the target's QEMU: %w", err)
	}
	if state.State != control.StateReceiving {
		return nil, fmt.Errorf("start the target's QEMU: the launcher is %s: %s", state.State, control.Printable(state.Failure, maxMessage))
	}
	answer := a.grant(ctx, vmi, launcher, offer.Wishes)
	a.remember(migration, &arrival{launcher: launcher, disks: vmi.CopiedDisks()})
	return answer, nil
}

// begin notes that an offer is looked at. It returns false if another one of the migration is.
func (a *Arrivals) begin(migration types.UID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.preparing[migration] {
		return false
	}
	if a.preparing == nil {
		a.preparing = map[types.UID]bool{}
	}
	a.preparing[migration] = true
	return true
}

func (a *Arrivals) done(migration types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.preparing, migration)
}

// start is as the start of a guest that begins here, but that the Machine is the source's.
func (a *Arrivals) start(ctx context.Context, vmi *v1.VirtualMachineInstance, launcher *sessions.Session, offer *peers.Offer) error {
	machine, err := a.replay(vmi, launcher, offer)
	if err != nil {
		return err
	}
	facts, err := inspectMoved(ctx, launcher, vmi, false)
	if err != nil {
		return err
	}
	if err := makeMoved(machine, vmi, offer.Claims, facts); err != nil {
		return err
	}
	request, err := handover.Start(vmi, machine)
	if err != nil {
		return err
	}
	request.Incoming, request.Paused = true, false
	request.Needs = request.NeededFeatures()
	if errs := unfit(&request, launcher.Features); len(errs) > 0 {
		return errs.ToAggregate()
	}
	links, err := linksOf(launcher, vmi)
	if err != nil {
		return err
	}
	if err := sameAddresses(vmi, links); err != nil {
		return err
	}
	connections, errs := connections(vmi, machine, links)
	if len(errs) > 0 {
		return errs.ToAggregate()
	}
	w := a.Node.wiring(vmi, launcher.Pod.Name)
	defer w.close()
	if err := launcher.Inside(func(netns ns.NetNS) error { return w.wire(vmi, connections, netns) }); err != nil {
		return err
	}
	a.Node.warnUnfiltered(ctx, vmi, w)
	request.DHCP = w.leases
	if err := launcher.Call(ctx, control.CommandStart, request, nil, w.files...); err != nil {
		return fmt.Errorf("hand the machine to the launcher: %w", err)
	}
	return nil
}

// sameAddresses refuses a pod whose addresses on a network beside the pod's own are not the guest's:
// the guest keeps the addresses that it has, and the filter of this pod would hold it to the pod's.
// Guests on networks with IPAM do not migrate (NotMigratable). But a NetworkAttachmentDefinition may
// have changed since the guest started.
func sameAddresses(vmi *v1.VirtualMachineInstance, links map[string]netsetup.Facts) error {
	for _, s := range vmi.Status.Interfaces {
		link, ok := links[s.Name]
		if !ok || vmi.Spec.OnPods(s.Name) {
			continue
		}
		for _, given := range netsetup.GuestAddresses(link) {
			if !slices.Contains(s.IPs, given) {
				return fmt.Errorf("network %q gives the guest %s on this node, and the guest has %q: a guest on a network without IPAM can move", s.Name, given, s.IPs)
			}
		}
	}
	return nil
}

// replay is the Machine with which the guest can be received here, or why it cannot.
func (a *Arrivals) replay(vmi *v1.VirtualMachineInstance, launcher *sessions.Session, offer *peers.Offer) (*qemuargs.Machine, error) {
	choice, _ := a.Node.Chooser.Choice()
	if choice.Accelerator == "" {
		return nil, fmt.Errorf("the node cannot run guests: %s", choice.Reason)
	}
	if choice.Accelerator == qemuargs.KVM {
		if why := a.CPU.Takes(offer.CPU, offer.Machine.CPU.Model); why != "" {
			return nil, errors.New(why)
		}
	}
	return resolve.Replay(vmi, resolve.Origin{Machine: offer.Machine, QEMUVersion: offer.QEMUVersion},
		resolve.Host{Accelerator: choice.Accelerator, QEMUVersion: launcher.QEMUVersion, VhostNet: a.Node.hasVhostNet(vmi, launcher, choice.Accelerator)})
}

// State returns the launcher's end of the channel for the guest's memory and devices.
func (a *Arrivals) State(ctx context.Context, node string, migration types.UID) (net.Conn, error) {
	offered, err := a.open(ctx, node, migration, stateChannel)
	if err != nil {
		return nil, err
	}
	return offered.launcher.Stream(ctx, control.CommandOpenChannel, nil)
}

// Receive has the launcher receive the guest over the channels.
func (a *Arrivals) Receive(ctx context.Context, node string, migration types.UID) error {
	offered, err := a.open(ctx, node, migration, reception)
	if err != nil {
		return err
	}
	return offered.launcher.Call(ctx, control.CommandReceive, nil, nil)
}

// Names of what is opened beside the disks. No disk has such a name.
const (
	stateChannel = ""
	reception    = " receive"
)

// Disk returns the launcher's end of a channel to a disk.
func (a *Arrivals) Disk(ctx context.Context, node string, migration types.UID, disk string) (net.Conn, error) {
	offered, err := a.open(ctx, node, migration, disk)
	if err != nil {
		return nil, err
	}
	return offered.launcher.Stream(ctx, control.CommandExportDisk, control.DiskRequest{Disk: disk})
}

// open notes that the source opens a channel, or has the guest received, if it may.
func (a *Arrivals) open(ctx context.Context, node string, migration types.UID, channel string) (*arrival, error) {
	if _, err := a.expected(ctx, func(m *v1.VirtualMachineInstanceMigrationState) bool {
		return m.SourceNode == node && m.MigrationUID == migration
	}); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	offered := a.offered[migration]
	if offered == nil || slices.Contains(offered.opened, channel) || channel != stateChannel && channel != reception && !slices.Contains(offered.disks, channel) {
		return nil, peers.ErrUnexpected
	}
	offered.opened = append(offered.opened, channel)
	return offered, nil
}

// remember keeps an arrival until its launcher's session has ended, and another guest is offered.
func (a *Arrivals) remember(migration types.UID, offered *arrival) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.offered, func(_ types.UID, o *arrival) bool {
		if o.refused != "" {
			return false
		}
		select {
		case <-o.launcher.Client.Done():
			return true
		default:
			return false
		}
	})
	if a.offered == nil {
		a.offered = map[types.UID]*arrival{}
	}
	a.offered[migration] = offered
}
