package handover

import (
	"fmt"

	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Start is the request that starts a VMI as the machine that package resolve made of it. The
// caller adds the DHCP servers.
func Start(vmi *v1.VirtualMachineInstance, machine *qemuargs.Machine) (control.StartRequest, error) {
	request := control.StartRequest{Machine: *machine, GraceSeconds: vmi.GracePeriodSeconds(), Paused: vmi.Spec.StartStrategy == v1.StartStrategyPaused,
		KeepLauncher: vmi.Annotations[v1.KeepLauncherAnnotation] == "true", NoSerialLog: !ptr.Deref(vmi.Spec.Domain.Devices.LogSerialConsole, true)}
	request.AgentCredentials = AgentCredentials(vmi)
	request.DedicatedCPUs = dedicatedCPUs(vmi.Spec.Domain.CPU)
	var err error
	request.CloudInit, err = seeds(vmi, machine)
	return request, err
}

// AgentCredentials are the Secrets that the launcher has the guest's agent put into the guest.
func AgentCredentials(vmi *v1.VirtualMachineInstance) []control.AgentCredential {
	var out []control.AgentCredential
	for i, c := range vmi.Spec.AccessCredentials {
		if !c.ByAgent() || c.Secret() == nil {
			continue
		}
		credential := control.AgentCredential{Secret: i}
		if k := c.SSHPublicKey; k != nil {
			credential.Users = k.PropagationMethod.QemuGuestAgent.Users
		}
		out = append(out, credential)
	}
	return out
}

// seeds are the data from which the launcher makes cloud-init's volumes.
func seeds(vmi *v1.VirtualMachineInstance, machine *qemuargs.Machine) ([]control.CloudInitSeed, error) {
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
		seed := control.CloudInitSeed{Volume: v.Name, InstanceID: machine.UUID, Hostname: vmi.GuestHostname(), UserData: user, NetworkData: network,
			UserDataSecret: source.UserDataSecretRef != nil, NetworkDataSecret: source.NetworkDataSecretRef != nil,
			AccessCredentials: vmi.Spec.SeedCredentials(&v)}
		if v.CloudInitConfigDrive != nil {
			seed.InstanceID, seed.ConfigDriveUUID, seed.Devices = vmi.Name+"."+vmi.Namespace, machine.UUID, tagged(vmi, machine)
		}
		out = append(out, seed)
	}
	return out, nil
}
