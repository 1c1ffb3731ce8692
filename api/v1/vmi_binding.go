package v1

import (
	"fmt"
	"slices"
)

// InterfaceBindingPlugin is a binding that the KubeVirt object registers.
type InterfaceBindingPlugin struct {
	// SidecarImage is a program that changes the XML of libvirt. Interfaces with such a plugin are refused.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	SidecarImage string `json:"sidecarImage,omitempty"`
	// NetworkAttachmentDefinition is of a network plugin that wires the pod for the binding. Interfaces with such a
	// plugin are refused.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	NetworkAttachmentDefinition string `json:"networkAttachmentDefinition,omitempty"`
	// DomainAttachmentType managedTap connects the guest by a tap and a bridge. Interfaces with another type are refused.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	DomainAttachmentType DomainAttachmentType `json:"domainAttachmentType,omitempty"`
	// Migration, also an empty one, says that a guest may migrate whose address the network gave by such a plugin.
	// +optional
	Migration *InterfaceBindingMigration `json:"migration,omitempty"`
	// DownwardAPI is for a sidecar. Interfaces with such a plugin are refused.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	DownwardAPI string `json:"downwardAPI,omitempty"`
	// ComputeResourceOverhead is for a plugin's programs. Interfaces with such a plugin are refused.
	// +optional
	ComputeResourceOverhead *Kept `json:"computeResourceOverhead,omitempty"`
}

// DomainAttachmentType is how a plugin connects a guest.
type DomainAttachmentType string

// ManagedTap is a tap on a bridge with the pod's interface.
const ManagedTap DomainAttachmentType = "managedTap"

// InterfaceBindingMigration is how guests with a plugin migrate.
type InterfaceBindingMigration struct {
	// Method link-refresh: the link goes down and up.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Method BindingMigrationMethod `json:"method,omitempty"`
}

// BindingMigrationMethod is what is done after a migration.
type BindingMigrationMethod string

// LinkRefresh takes the card's link down and up after a migration.
const LinkRefresh BindingMigrationMethod = "link-refresh"

// InterfaceBinding is an interface's plugin.
type InterfaceBinding struct {
	// Name of the interface.
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// Migration of the plugin.
	// +optional
	Migration *InterfaceBindingMigration `json:"migration,omitempty"`
}

// WhyRefused returns why interfaces with the plugin are refused, or an empty text for a plugin that is supported.
func (p *InterfaceBindingPlugin) WhyRefused() string {
	switch {
	case p.SidecarImage != "":
		return "has a sidecarImage, a program that changes the XML of libvirt, and there is none here"
	case p.NetworkAttachmentDefinition != "":
		return "has a networkAttachmentDefinition, a network plugin of its own, which does not know the tap here"
	case p.DomainAttachmentType != ManagedTap:
		return fmt.Sprintf("has domainAttachmentType %q, and only managedTap is supported", p.DomainAttachmentType)
	case p.DownwardAPI != "":
		return "has downwardAPI, which is for a sidecar"
	case p.ComputeResourceOverhead != nil:
		return "has computeResourceOverhead, which is for the programs of a plugin"
	case p.Migration != nil && p.Migration.Method != "" && p.Migration.Method != LinkRefresh:
		return fmt.Sprintf("has the migration method %q, and only link-refresh is known", p.Migration.Method)
	}
	return ""
}

// BindingPlugin returns a plugin that the cluster's configuration registers, and whether it registers it.
func (c *KubeVirtConfiguration) BindingPlugin(name string) (InterfaceBindingPlugin, bool) {
	if c.NetworkConfiguration == nil {
		return InterfaceBindingPlugin{}, false
	}
	plugin, registered := c.NetworkConfiguration.Binding[name]
	return plugin, registered
}

// Bindings returns what the cluster's configuration says now of the plugins of the VMI's interfaces.
func (c *KubeVirtConfiguration) Bindings(spec *VirtualMachineInstanceSpec) (out []InterfaceBinding) {
	for _, nic := range spec.Domain.Devices.Interfaces {
		if nic.Binding != nil {
			plugin, _ := c.BindingPlugin(nic.Binding.Name)
			out = append(out, InterfaceBinding{Name: nic.Name, Migration: plugin.Migration.DeepCopy()})
		}
	}
	return out
}

// BindingMigration returns how the guest migrates with the plugin of an interface, or nil.
func (s *VirtualMachineInstanceStatus) BindingMigration(nic string) *InterfaceBindingMigration {
	i := slices.IndexFunc(s.Bindings, func(b InterfaceBinding) bool { return b.Name == nic })
	if i < 0 {
		return nil
	}
	return s.Bindings[i].Migration
}

// RefreshesLink reports whether the link of an interface's card goes down and up after a migration.
func (s *VirtualMachineInstanceStatus) RefreshesLink(nic string) bool {
	m := s.BindingMigration(nic)
	return m != nil && m.Method == LinkRefresh
}

// IsBridged reports whether the interface takes the place of the pod on its network.
func (n *Interface) IsBridged() bool { return n.Bridge != nil || n.Binding != nil }

// MayServe reports whether a DHCP server of the pod may serve the guest on the interface.
func (n *Interface) MayServe() bool { return n.Binding == nil && n.SRIOV == nil }
