package v1

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// EmulationPermitted says whether guests may be emulated.
func (c *KubeVirtConfiguration) EmulationPermitted() bool {
	return c.DeveloperConfiguration != nil && c.DeveloperConfiguration.UseEmulation
}

// machineType is the default machine type for amd64, or empty.
func (c *KubeVirtConfiguration) machineType() string {
	if a := c.ArchitectureConfiguration; a != nil && a.Amd64 != nil && a.Amd64.MachineType != "" {
		return a.Amd64.MachineType
	}
	return c.MachineType
}

// OldestKubeVirt is the KubeVirt in force, given all in the components' namespace: a second
// KubeVirt changes nothing. It is nil if there is none.
func OldestKubeVirt(all []KubeVirt) *KubeVirt {
	if len(all) == 0 {
		return nil
	}
	first := slices.MinFunc(all, func(a, b KubeVirt) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return &first
}

// ClusterConfiguration is the configuration in force, given all KubeVirts of the components'
// namespace.
func ClusterConfiguration(all []KubeVirt) *KubeVirtConfiguration {
	if oldest := OldestKubeVirt(all); oldest != nil {
		return &oldest.Spec.Configuration
	}
	return &KubeVirtConfiguration{}
}

// ApplyClusterDefaults fills in what the spec leaves out from the cluster's configuration. It
// is called before Default, which fills in the rest. Like Default it is idempotent, and never
// changes a field that is set.
func ApplyClusterDefaults(vmi *VirtualMachineInstance, config *KubeVirtConfiguration) {
	spec := &vmi.Spec
	if model := config.CPUModel; model != "" {
		if spec.Domain.CPU == nil {
			spec.Domain.CPU = &CPU{}
		}
		if spec.Domain.CPU.Model == "" {
			spec.Domain.CPU.Model = model
		}
	}
	if machine := config.machineType(); machine != "" && (spec.Architecture == "" || spec.Architecture == "amd64") {
		if spec.Domain.Machine == nil {
			spec.Domain.Machine = &Machine{}
		}
		if spec.Domain.Machine.Type == "" {
			spec.Domain.Machine.Type = machine
		}
	}
	if devices := &spec.Domain.Devices; config.silent() && devices.LogSerialConsole == nil {
		devices.LogSerialConsole = ptr.To(false)
	}
	if n := config.NetworkConfiguration; n != nil && n.NetworkInterface == "masquerade" && wantsInterface(spec) {
		const name = "default" // KubeVirt's
		spec.Networks = []Network{{Name: name, Pod: &PodNetwork{}}}
		spec.Domain.Devices.Interfaces = []Interface{{Name: name, Masquerade: &InterfaceMasquerade{}}}
	}
}

// silent says whether serial ports are not logged by default.
func (c *KubeVirtConfiguration) silent() bool {
	return c.VirtualMachineOptions != nil && c.VirtualMachineOptions.DisableSerialConsoleLog != nil
}

// wantsInterface says whether a guest gets an interface that it does not name.
func wantsInterface(spec *VirtualMachineInstanceSpec) bool {
	auto := spec.Domain.Devices.AutoattachPodInterface
	return len(spec.Networks) == 0 && len(spec.Domain.Devices.Interfaces) == 0 && (auto == nil || *auto)
}

// ValidateForCluster returns what the cluster's configuration does not permit
// of a defaulted VMI, with exact paths. It adds to Validate.
func ValidateForCluster(vmi *VirtualMachineInstance, config *KubeVirtConfiguration) field.ErrorList {
	hostDisks := ValidateHostDisks(vmi, config)
	n := config.NetworkConfiguration
	if n == nil || n.PermitBridgeInterfaceOnPodNetwork == nil || *n.PermitBridgeInterfaceOnPodNetwork {
		return hostDisks
	}
	onPod := map[string]bool{}
	for _, network := range vmi.Spec.Networks {
		onPod[network.Name] = network.Pod != nil
	}
	errs := hostDisks
	for i, nic := range vmi.Spec.Domain.Devices.Interfaces {
		if nic.Bridge != nil && onPod[nic.Name] {
			errs = append(errs, field.Forbidden(field.NewPath("spec", "domain", "devices", "interfaces").Index(i).Child("bridge"),
				"the cluster's configuration permits no bridge interface on the pod network"))
		}
	}
	return errs
}
