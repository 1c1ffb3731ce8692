package migration

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/handover"
	"github.com/kubeqemu/kubeqemu/controllers/node/peers"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/controllers/node/wiring"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/netsetup"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// Expects reports whether a guest is to come from a node now.
func (a *Arrivals) Expects(ctx context.Context, node string) bool {
	_, err := a.expected(ctx, func(m *v1.VirtualMachineInstanceMigrationState) bool { return m.SourceNode == node })
	return err == nil
}

// expected returns the VMI whose guest is to come by a migration that fits.
func (a *Arrivals) expected(ctx context.Context,
	fits func(*v1.VirtualMachineInstanceMigrationState) bool) (*v1.VirtualMachineInstance, error) {
	var vmis v1.VirtualMachineInstanceList
	if err := a.Coming.List(ctx, &vmis, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("find the guests that come: %w", err)
	}
	for i := range vmis.Items {
		vmi := &vmis.Items[i]
		m := vmi.Migration()
		if m != nil && m.TargetNode == a.Node.Name && m.Decision == "" && targetState(m).Failure == "" &&
			vmi.DeletionTimestamp == nil && !vmi.IsFinal() && fits(m) {
			return vmi.DeepCopy(), nil
		}
	}
	return nil, peers.ErrUnexpected
}

// receiveTimeout is how long QEMU may take until it waits for the guest.
const receiveTimeout = 2 * time.Minute

// Prepare lets the target's launcher wait for a guest.
func (a *Arrivals) Prepare(ctx context.Context, node string, migration types.UID,
	offer *peers.Offer) (*peers.Answer, error) {
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
	ctx, cancel := context.WithTimeoutCause(ctx, receiveTimeout,
		fmt.Errorf("QEMU did not wait for the guest within %s", receiveTimeout))
	defer cancel()
	state, err := launcher.Await(ctx, func(s control.StateReport) bool {
		return s.State != control.StateWaiting && s.State != control.StatePreparing
	})
	if err != nil {
		return nil, fmt.Errorf("start the target's QEMU: %w", err)
	}
	if state.State != control.StateReceiving {
		return nil, fmt.Errorf("start the target's QEMU: the launcher is %s: %s", state.State,
			control.Printable(state.Failure, maxMessage))
	}
	answer := a.grant(ctx, vmi, launcher, offer.Wishes)
	a.remember(migration, &arrival{launcher: launcher, disks: copied(vmi)})
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

// start starts QEMU as for a guest that begins here, but with the source's Machine.
func (a *Arrivals) start(ctx context.Context, vmi *v1.VirtualMachineInstance, launcher *sessions.Session,
	offer *peers.Offer) error {
	machine, here, err := a.machine(ctx, vmi, launcher, offer)
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
	if request.Host, err = movedHost(offer, here, launcher.Commands); err != nil {
		return err
	}
	links, err := wiring.Links(launcher, vmi)
	if err != nil {
		return err
	}
	if err := sameAddresses(vmi, links); err != nil {
		return err
	}
	return a.Starter.HandOver(ctx, vmi, launcher, &request, links)
}

// sameAddresses refuses a pod whose addresses on a network beside the pod's own are not the guest's: the guest keeps
// the addresses that it has, and the filter of this pod would hold it to the pod's. Guests on networks with IPAM do
// not migrate (NotMigratable), but where a plugin's migration says that the network moves the addresses, or that the
// guest asks for others. But a NetworkAttachmentDefinition may have changed since the guest started.
func sameAddresses(vmi *v1.VirtualMachineInstance, links map[string]netsetup.Facts) error {
	for _, s := range vmi.Status.Interfaces {
		link, ok := links[s.Name]
		if !ok || vmi.Spec.OnPods(s.Name) || vmi.Status.BindingMigration(s.Name) != nil {
			continue
		}
		for _, given := range netsetup.GuestAddresses(link) {
			if !slices.Contains(s.IPs, given) {
				return fmt.Errorf("network %q gives the guest %s on this node, and the guest has %q: "+
					"a guest on a network without IPAM can move", s.Name, given, s.IPs)
			}
		}
	}
	return nil
}

// machine returns the Machine with which the guest can be received here, and the facts by which the Machine differs
// from the source's; or why it cannot be received.
func (a *Arrivals) machine(ctx context.Context, vmi *v1.VirtualMachineInstance, launcher *sessions.Session,
	offer *peers.Offer) (*qemuargs.Machine, resolve.Host, error) {
	choice, _ := a.Starter.Chooser.Choice()
	if choice.Accelerator == "" {
		return nil, resolve.Host{}, fmt.Errorf("the node cannot run guests: %s", choice.Reason)
	}
	if vmi.Spec.Architecture != "" && vmi.Spec.Architecture != runtime.GOARCH {
		choice.Accelerator = qemuargs.TCG // as at the source: the guest came here because the cluster's configuration let it
	}
	if choice.Accelerator == qemuargs.KVM {
		if why := a.Node.CPU.Takes(offer.CPU, offer.Machine.CPU); why != "" {
			return nil, resolve.Host{}, errors.New(why)
		}
	}
	host := resolve.Host{Accelerator: choice.Accelerator, QEMUVersion: launcher.QEMUVersion,
		VhostNet: a.Starter.Wiring.HasVhostNet(vmi, launcher, choice.Accelerator)}
	if err := inspectArrival(ctx, vmi, launcher, offer, &host); err != nil {
		return nil, host, err
	}
	machine, err := resolve.Arrival(vmi, resolve.Origin{Machine: offer.Machine, QEMUVersion: offer.QEMUVersion,
		Images: toldImages(offer)}, host)
	return machine, host, err
}

// inspectArrival puts into host what the target's pod alone can see: its kinds of I/O, and how container disks come to
// it. That may be in another way than at the source.
func inspectArrival(ctx context.Context, vmi *v1.VirtualMachineInstance, launcher *sessions.Session,
	offer *peers.Offer, host *resolve.Host) error {
	request := control.InspectRequest{ContainerDisks: handover.Inspection(vmi).ContainerDisks}
	if !usesAIO(&offer.Machine) && len(request.ContainerDisks) == 0 {
		return nil
	}
	var reply control.InspectReply
	if err := launcher.Call(ctx, control.CommandInspect, request, &reply); err != nil {
		return fmt.Errorf("inspect the container disks and the kinds of I/O: %w", err)
	}
	return handover.Take(host, request, reply)
}
