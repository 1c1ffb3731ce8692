package validation

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// ValidateForCluster returns what the cluster's configuration does not permit of a defaulted VMI, with exact paths. It
// adds to ValidateVirtualMachineInstance.
func ValidateForCluster(vmi *v1.VirtualMachineInstance, config *v1.KubeVirtConfiguration) field.ErrorList {
	return slices.Concat(ValidateHostDisks(vmi, config), validateMachines(vmi, config), validateBridges(vmi, config),
		ValidateBindings(vmi, config))
}

// validateMachines refuses a machine type that no pattern of emulatedMachines matches.
func validateMachines(vmi *v1.VirtualMachineInstance, config *v1.KubeVirtConfiguration) field.ErrorList {
	patterns, machine := emulatedMachines(config, vmi.Spec.Architecture), vmi.Spec.Domain.Machine
	if machine == nil || permitsMachine(patterns, machine.Type) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("spec", "domain", "machine", "type"), machine.Type,
		fmt.Sprintf("the cluster's configuration permits these machine types only (emulatedMachines): %s",
			strings.Join(patterns, ", ")))}
}

// emulatedMachines returns patterns of the machine types that guests of an architecture may have, or none if they may
// have every type.
func emulatedMachines(c *v1.KubeVirtConfiguration, architecture string) []string {
	if architecture == v1.ARM64 {
		if a := c.ArchitectureConfiguration; a != nil && a.Arm64 != nil {
			return a.Arm64.EmulatedMachines
		}
		return nil
	}
	if a := c.ArchitectureConfiguration; a != nil && a.Amd64 != nil && len(a.Amd64.EmulatedMachines) > 0 {
		return a.Amd64.EmulatedMachines
	}
	return c.EmulatedMachines
}

func validateBridges(vmi *v1.VirtualMachineInstance, config *v1.KubeVirtConfiguration) field.ErrorList {
	n := config.NetworkConfiguration
	if n == nil || n.PermitBridgeInterfaceOnPodNetwork == nil || *n.PermitBridgeInterfaceOnPodNetwork {
		return nil
	}
	onPod := map[string]bool{}
	for _, network := range vmi.Spec.Networks {
		onPod[network.Name] = network.Pod != nil
	}
	var errs field.ErrorList
	for i, nic := range vmi.Spec.Domain.Devices.Interfaces {
		if nic.Bridge != nil && onPod[nic.Name] {
			errs = append(errs, field.Forbidden(
				field.NewPath("spec", "domain", "devices", "interfaces").Index(i).Child("bridge"),
				"the cluster's configuration permits no bridge interface on the pod network"))
		}
	}
	return errs
}

// ValidateBindings refuses plugins that the cluster's configuration does not register, or that are not supported.
func ValidateBindings(vmi *v1.VirtualMachineInstance, config *v1.KubeVirtConfiguration) field.ErrorList {
	var errs field.ErrorList
	for i, nic := range vmi.Spec.Domain.Devices.Interfaces {
		if nic.Binding == nil {
			continue
		}
		path := field.NewPath("spec", "domain", "devices", "interfaces").Index(i).Child("binding", "name")
		plugin, registered := config.BindingPlugin(nic.Binding.Name)
		if !registered {
			errs = append(errs, field.Invalid(path, nic.Binding.Name, "the KubeVirt object has no such plugin in "+
				"spec.configuration.network.binding: an administrator may register it there, with domainAttachmentType managedTap"))
		} else if why := plugin.WhyRefused(); why != "" {
			errs = append(errs, field.Invalid(path, nic.Binding.Name,
				"the plugin "+why+": use a plugin with domainAttachmentType managedTap and nothing but migration, or bridge, or "+
					"masquerade"))
		}
	}
	return errs
}
