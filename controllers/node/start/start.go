// Package start has waiting launchers start QEMU. HandOver is the one place that hands a Machine to a launcher,
// whether the guest begins here or comes from another node.
package start

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/handover"
	"github.com/kubeqemu/kubeqemu/controllers/node/accelerator"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/controllers/node/wiring"
	"github.com/kubeqemu/kubeqemu/internal/zone"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/netsetup"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// Starter starts the guests of a node.
type Starter struct {
	Clock   clock.PassiveClock
	Chooser *accelerator.Chooser
	Wiring  wiring.Wirer
	// NoHyperV: the kernel's KVM has none of Hyper-V's interfaces.
	NoHyperV bool
	// Memory lets QEMUs lock memory. Nil lets none.
	Memory Memory
	// HostModel returns the flags that make QEMU's CPU model base the node's own CPU, if the node's QEMU has this
	// version; else none.
	HostModel func(ctx context.Context, a qemuargs.Accelerator, qemuVersion string) []string
	// Cluster returns the cluster's configuration. Nil stands for an empty one.
	Cluster func(context.Context) (*v1.KubeVirtConfiguration, error)
}

// Start takes a waiting launcher to a running QEMU. It asks for what only the pod can see, decides, wires the network,
// and hands the machine over. Every step may be repeated after a crash. With hold the guest's CPUs stay stopped.
func (s *Starter) Start(ctx context.Context, vmi *v1.VirtualMachineInstance, launcher *sessions.Session,
	hold bool) error {
	links, err := wiring.Links(launcher, vmi)
	if missing := new(wiring.MissingLink); errors.As(err, missing) {
		// Plugins connect a pod when it is made, and never later.
		return s.reject(ctx, launcher, field.ErrorList{missing.InSpec()})
	}
	if err != nil {
		return err
	}
	host, err := s.host(ctx, vmi, launcher, links)
	if errs := hopeless(vmi, launcher, err); errs != nil {
		return s.reject(ctx, launcher, errs)
	}
	if err != nil {
		return err
	}
	machine, errs := resolve.Machine(vmi, host)
	if len(errs) > 0 {
		return s.reject(ctx, launcher, errs)
	}
	request, err := handover.Start(vmi, machine)
	if err != nil {
		return err
	}
	request.Paused = request.Paused || hold
	if request.Host, err = Kept(host, launcher.Commands); err != nil {
		return err
	}
	err = s.HandOver(ctx, vmi, launcher, &request, links)
	if errs := (refusal{}); errors.As(err, &errs) {
		return s.reject(ctx, launcher, errs.ErrorList)
	}
	return err
}

// host gathers what resolve.Machine needs besides the VMI.
func (s *Starter) host(ctx context.Context, vmi *v1.VirtualMachineInstance, launcher *sessions.Session,
	links map[string]netsetup.Facts) (resolve.Host, error) {
	choice, _ := s.Chooser.Choice()
	if choice.Accelerator == "" { // the node's choice changed after this pod got its slot
		return resolve.Host{}, fmt.Errorf("the node cannot run guests: %s", choice.Reason)
	}
	cluster, err := s.cluster(ctx)
	if err != nil {
		return resolve.Host{}, err
	}
	by, err := acceleratorOf(vmi, choice.Accelerator, cluster)
	if err != nil {
		return resolve.Host{}, err
	}
	host := s.ofNode(by, launcher.QEMUVersion, cluster)
	host.VhostNet, host.NICs = s.Wiring.HasVhostNet(vmi, launcher, by), map[string]resolve.NIC{}
	now := s.Clock.Now()
	host.Now, host.ZoneOffset = now.Unix(), zone.Offset(vmi.Spec.Domain.Timezone(), now)
	host.TSCFrequency = vmi.TSCFrequency()
	if cpu := vmi.Spec.Domain.CPU; s.HostModel != nil && (cpu == nil || cpu.Model == "" || cpu.Model == v1.HostModel) {
		host.HostModel = s.HostModel(ctx, choice.Accelerator, launcher.QEMUVersion)
	}
	request := handover.Inspection(vmi)
	if request.Claims, err = claims(vmi); err != nil {
		return host, err
	}
	var reply control.InspectReply
	if err := launcher.Call(ctx, control.CommandInspect, request, &reply); err != nil {
		return host, fmt.Errorf("inspect disks: %w", err)
	}
	if err := handover.Take(&host, request, reply); err != nil {
		return host, err
	}
	for _, asked := range request.Claims {
		facts := host.Claims[asked.Volume]
		// The launcher must not change these.
		facts.Block, facts.DiskSize, facts.Path = asked.Block, diskSize(vmi, asked.Volume), ""
		host.Claims[asked.Volume] = facts
	}
	for nic, link := range links {
		host.NICs[nic] = resolve.NIC{MTU: link.MTU, MAC: link.MAC, RefreshLink: vmi.Status.RefreshesLink(nic)}
	}
	cards, err := handover.Devices(request, reply, vmi.Status.LauncherDevices(launcher.Pod.Name))
	if err != nil {
		return host, err
	}
	for nic, card := range cards {
		host.NICs[nic] = resolve.NIC{Device: card}
	}
	return host, nil
}

// hopeless returns the errors of a host that no later attempt mends. Which network card of the node is for which
// interface is not known before virt-controller has copied what Multus says. Multus says that before the kubelet
// knows the addresses of the pod, so whoever has the addresses has all that Multus said.
func hopeless(vmi *v1.VirtualMachineInstance, launcher *sessions.Session, err error) field.ErrorList {
	if errs := lacking(err); errs != nil {
		return errs
	}
	switch {
	case errors.Is(err, errForeign):
		return field.ErrorList{field.Forbidden(field.NewPath("spec", "architecture"), err.Error())}
	case errors.Is(err, handover.ErrDeviceUnknown):
		if addresses, foreign := wiring.Vouched(launcher, vmi); foreign == nil && len(addresses) > 0 {
			return field.ErrorList{field.Forbidden(field.NewPath("spec", "domain", "devices", "interfaces"), err.Error())}
		}
	}
	return nil
}

// errForeign means that a node runs no guests of an architecture.
var errForeign = errors.New("the node has another architecture")

// acceleratorOf returns what runs the guest's CPUs on a node with an accelerator. A guest of another architecture
// than the node's is emulated, if the cluster permits that. It is pure.
func acceleratorOf(vmi *v1.VirtualMachineInstance, here qemuargs.Accelerator,
	cluster *v1.KubeVirtConfiguration) (qemuargs.Accelerator, error) {
	guest := vmi.Spec.Architecture
	switch {
	case guest == "" || guest == runtime.GOARCH:
		return here, nil
	case cluster.NodeArchitecture(guest) == runtime.GOARCH:
		return qemuargs.TCG, nil
	}
	return "", fmt.Errorf("%w: it is of %s, and runs guests of %s only if "+
		"configuration.architectureConfiguration.arm64.useEmulation of the KubeVirt object is true",
		errForeign, runtime.GOARCH, guest)
}

// reject lets the launcher know that its VM can never be started.
func (s *Starter) reject(ctx context.Context, launcher *sessions.Session, errs field.ErrorList) error {
	why := control.Termination{Reason: control.ReasonStartFailed, Message: errs.ToAggregate().Error()}
	if err := launcher.Call(ctx, control.CommandReject, why, nil); err != nil && !errors.Is(err, control.ErrClosed) {
		return fmt.Errorf("reject the VM (%s): %w", why.Message, err)
	}
	return nil
}
