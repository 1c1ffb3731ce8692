package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/containernetworking/plugins/pkg/ns"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// start takes a waiting launcher to a running QEMU. It asks for what only the pod can see,
// decides, wires the network, and hands the machine over. Every step may be repeated after a
// crash. With hold the guest's CPUs stay stopped; see gather.
func (r *Reconciler) start(ctx context.Context, vmi *v1.VirtualMachineInstance, launcher *sessions.Session, hold bool) error {
	host, err := r.host(ctx, vmi, launcher)
	if err != nil {
		return err
	}
	machine, errs := resolve.Machine(vmi, host)
	if len(errs) > 0 {
		return r.reject(ctx, launcher, errs)
	}
	request := control.StartRequest{Machine: *machine, GraceSeconds: vmi.GracePeriodSeconds(),
		Paused: hold || vmi.Spec.StartStrategy == v1.StartStrategyPaused, KeepLauncher: vmi.Annotations[v1.KeepLauncherAnnotation] == "true", NoSerialLog: !ptr.Deref(vmi.Spec.Domain.Devices.LogSerialConsole, true)}
	request.AgentCredentials = agentCredentials(vmi)
	if request.CloudInit, err = seeds(vmi, machine.UUID); err != nil {
		return err
	}
	request.Needs = request.NeededFeatures()
	if errs := unfit(&request, launcher.Features); len(errs) > 0 {
		return r.reject(ctx, launcher, errs)
	}
	w := &wiring{}
	defer w.close()
	if err := launcher.Inside(func(netns ns.NetNS) error { return w.wire(vmi, machine, linksOf(launcher, vmi), netns) }); err != nil {
		return err
	}
	r.warnUnfiltered(ctx, vmi, w)
	request.DHCP = w.leases
	if err := launcher.Call(ctx, control.CommandStart, request, nil, w.files...); err != nil {
		return fmt.Errorf("hand the machine to the launcher: %w", err)
	}
	return nil
}

// unfit says why a launcher cannot run the VM, before anything is wired. The launcher comes
// with the pod's image, so that repeating the start would not help.
func unfit(request *control.StartRequest, features []string) field.ErrorList {
	var errs field.ErrorList
	for _, feature := range control.Lacks(features, request.Needs) {
		errs = append(errs, field.Forbidden(field.NewPath("spec"), fmt.Sprintf("needs the feature %q, which this pod's virt-launcher does not have: delete the VMI and make it anew, or restart its VM", feature)))
	}
	if err := control.CheckMachine(&request.Machine); err != nil {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "domain"), err.Error()))
	}
	return errs
}

// host gathers what resolve.Machine needs besides the VMI.
func (r *Reconciler) host(ctx context.Context, vmi *v1.VirtualMachineInstance, launcher *sessions.Session) (resolve.Host, error) {
	choice, _ := r.Chooser.Choice()
	if choice.Accelerator == "" { // the node's choice changed after this pod got its slot
		return resolve.Host{}, fmt.Errorf("the node cannot run guests: %s", choice.Reason)
	}
	host := resolve.Host{
		Accelerator: choice.Accelerator, QEMUVersion: launcher.QEMUVersion,
		ContainerDisks: map[string]qemuargs.ImageFacts{}, Claims: map[string]qemuargs.VolumeFacts{}, NICs: map[string]resolve.NIC{},
	}
	var request control.InspectRequest
	for _, v := range vmi.Spec.Volumes {
		if v.ContainerDisk != nil {
			request.ContainerDisks = append(request.ContainerDisks, control.ContainerDisk{Volume: v.Name, Path: v.ContainerDisk.Path})
		}
	}
	var err error
	if request.Claims, err = claims(vmi); err != nil {
		return host, err
	}
	kernel := vmi.KernelContainer()
	if kernel != nil {
		request.Kernel = &control.KernelFiles{Kernel: kernel.KernelPath, Initrd: kernel.InitrdPath}
	}
	var reply control.InspectReply
	if err := launcher.Call(ctx, control.CommandInspect, request, &reply); err != nil {
		return host, fmt.Errorf("inspect disks: %w", err)
	}
	if len(reply.ContainerDisks) != len(request.ContainerDisks) {
		return host, fmt.Errorf("inspect disks: %w: asked about %d, got %d", control.ErrProtocol, len(request.ContainerDisks), len(reply.ContainerDisks))
	}
	if len(reply.Claims) != len(request.Claims) {
		return host, fmt.Errorf("inspect claims: %w: asked about %d, got %d", control.ErrProtocol, len(request.Claims), len(reply.Claims))
	}
	for i, facts := range reply.Claims {
		asked := request.Claims[i]
		facts.Block, facts.DiskSize = asked.Block, diskSize(vmi, asked.Volume) // facts of the claim, which the launcher must not change
		host.Claims[asked.Volume] = facts
	}
	host.OverlayDirect = reply.OverlayDirect
	if kernel != nil {
		host.Kernel = reply.Kernel
	}
	for i, facts := range reply.ContainerDisks {
		host.ContainerDisks[request.ContainerDisks[i].Volume] = facts
	}
	for _, nic := range vmi.Spec.Domain.Devices.Interfaces {
		host.NICs[nic.Name] = nicFacts(linksOf(launcher, vmi)[nic.Name])
	}
	return host, nil
}

// reject tells the launcher that its VM can never be started.
func (r *Reconciler) reject(ctx context.Context, launcher *sessions.Session, errs field.ErrorList) error {
	why := control.Termination{Reason: control.ReasonStartFailed, Message: errs.ToAggregate().Error()}
	if err := launcher.Call(ctx, control.CommandReject, why, nil); err != nil && !errors.Is(err, control.ErrClosed) {
		return fmt.Errorf("reject the VM (%s): %w", why.Message, err)
	}
	return nil
}

// seeds are the data from which the launcher makes cloud-init's volumes.
func seeds(vmi *v1.VirtualMachineInstance, machineUUID string) ([]control.CloudInitSeed, error) {
	var out []control.CloudInitSeed
	for _, v := range vmi.Spec.Volumes {
		source := v.CloudInit()
		if source == nil {
			continue
		}
		user, network, err := source.Data()
		if err != nil {
			return nil, fmt.Errorf("read cloud-init volume %s: %w", v.Name, err)
		}
		// cloud-init runs its first-boot modules when it finds a new instance ID, or a new
		// UUID of the ConfigDrive. A VM that is started again with its disk must not run them:
		// it has the same machine UUID as before.
		seed := control.CloudInitSeed{Volume: v.Name, InstanceID: machineUUID, Hostname: vmi.GuestHostname(), UserData: user, NetworkData: network,
			UserDataSecret: source.UserDataSecretRef != nil, NetworkDataSecret: source.NetworkDataSecretRef != nil,
			AccessCredentials: vmi.Spec.SeedCredentials(&v)}
		if v.CloudInitConfigDrive != nil {
			seed.InstanceID, seed.ConfigDriveUUID = vmi.Name+"."+vmi.Namespace, machineUUID
		}
		out = append(out, seed)
	}
	return out, nil
}
