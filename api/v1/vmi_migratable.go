package v1

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// AllowPodBridgeMigrationAnnotation set to any value lets a guest move that is bridged to the pod network. Such
// a guest has the pod's address, and keeps the old pod's address until its DHCP lease ends.
const AllowPodBridgeMigrationAnnotation = "kubevirt.io/allow-pod-bridge-network-live-migration"

// Reasons for which a guest cannot move to another node, with KubeVirt's names.
const (
	// ReasonMigratable is of the condition that is True. KubeVirt gives it no reason.
	ReasonMigratable             = "Migratable"
	ReasonInterfaceNotMigratable = "InterfaceNotLiveMigratable"
	ReasonDisksNotMigratable     = "DisksNotLiveMigratable"
	ReasonHypervNotMigratable    = "HypervPassthroughNotLiveMigratable"
	ReasonTSCNotMigratable       = "NoTSCFrequencyNotLiveMigratable"
	// ReasonHostDeviceNotMigratable is of guests with a device that stays where it is.
	ReasonHostDeviceNotMigratable = "HostDeviceNotLiveMigratable"
)

// MigrationMethod says what is copied besides memory.
type MigrationMethod string

// Migration methods, with KubeVirt's names.
const (
	// MethodLiveMigration: both nodes use the same disks.
	MethodLiveMigration MigrationMethod = "LiveMigration"
	// MethodBlockMigration: some disks are the node's own, and are copied.
	MethodBlockMigration MigrationMethod = "BlockMigration"
)

// TransportUnix is the only migration transport: QEMU sends to a unix socket.
const TransportUnix = "Unix"

// NotMigratable returns why the guest cannot move to another node: a reason and a sentence. Both are empty if it
// can. The status must hold what is known of the VMI's claims and interfaces.
func (vmi *VirtualMachineInstance) NotMigratable() (reason, message string) {
	if _, allowed := vmi.Annotations[AllowPodBridgeMigrationAnnotation]; !allowed {
		for i, nic := range vmi.Spec.Domain.Devices.Interfaces {
			if nic.Binding != nil && vmi.Spec.OnPods(nic.Name) && vmi.Status.BindingMigration(nic.Name) == nil {
				return ReasonInterfaceNotMigratable, fmt.Sprintf("spec.domain.devices.interfaces[%d] is on the pod network by "+
					"the plugin %s, and the plugin had no migration in spec.configuration.network.binding of the KubeVirt object "+
					"when the guest was started; the annotation %s permits that",
					i, nic.Binding.Name, AllowPodBridgeMigrationAnnotation)
			}
			if nic.Bridge != nil && vmi.Spec.OnPods(nic.Name) {
				return ReasonInterfaceNotMigratable, fmt.Sprintf("spec.domain.devices.interfaces[%d] is bridged to the pod "+
					"network, and its guest has the address of its pod, which every node gives anew; the annotation %s permits that",
					i, AllowPodBridgeMigrationAnnotation)
			}
		}
	}
	if reason, message := vmi.Spec.Domain.Devices.stay(); reason != "" {
		return reason, message
	}
	for i, nic := range vmi.Spec.Domain.Devices.Interfaces {
		if why := vmi.interfaceStays(nic); why != "" {
			return ReasonInterfaceNotMigratable, fmt.Sprintf("spec.domain.devices.interfaces[%d], %s, %s", i, nic.Name, why)
		}
	}
	if reason, message := vmi.cpuStays(); reason != "" {
		return reason, message
	}
	if why := vmi.filesystemsStay(); why != "" {
		return ReasonVirtioFSNotMigratable, why
	}
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		if vmi.Spec.IsFilesystem(v.Name) {
			continue
		}
		if why := vmi.diskStays(v); why != "" {
			return ReasonDisksNotMigratable, fmt.Sprintf("spec.volumes[%d], %s, %s", i, v.Name, why)
		}
	}
	if why := vmi.tpmStays(); why != "" {
		return ReasonTPMNotMigratable, why
	}
	if why := vmi.stateStays(); why != "" {
		return ReasonDisksNotMigratable, why
	}
	return "", ""
}

// interfaceStays returns why an interface on a network of Multus keeps the guest on its node, or an empty text if it
// does not. If the network's IPAM gives the guest's address, the target's pod has the guest's address and MAC while the
// guest still runs at the source: the pod would reset the guest's connections.
func (vmi *VirtualMachineInstance) interfaceStays(nic Interface) string {
	if vmi.Spec.OnPods(nic.Name) || nic.Binding != nil && vmi.Status.BindingMigration(nic.Name) != nil {
		return ""
	}
	i := slices.IndexFunc(vmi.Status.Interfaces, func(s NetworkInterfaceStatus) bool { return s.Name == nic.Name })
	switch {
	case i < 0 || vmi.Status.Interfaces[i].IPAM == nil:
		return "is on a network of Multus, of which it is not known yet whether it has IPAM; a guest on a network without " +
			"IPAM can move"
	case *vmi.Status.Interfaces[i].IPAM:
		return "is on a network of Multus that gives it an address by IPAM, which the migration's target would use before " +
			"the guest is there; a guest on a network without IPAM can move"
	}
	return ""
}

// diskStays returns why a volume's disk is on one node only, or an empty text if it is on all nodes, or can be copied.
func (vmi *VirtualMachineInstance) diskStays(v *Volume) string {
	if v.HostDisk != nil && !ptr.Deref(v.HostDisk.Shared, false) {
		return "is a file of its node; shared: true says that all nodes have the same file"
	}
	if v.ServiceAccount != nil {
		return "has a token that ends with its pod, and the guest would keep it after that; a guest without the volume can move"
	}
	claim := vmi.Claim(v)
	if shared := vmi.shares(v.Name); claim == nil || vmi.Moves(v.Name) && !shared {
		return ""
	} else if shared && vmi.Moves(v.Name) {
		return "is shared with other guests (shareable): a copy of it would not be"
	}
	info := vmi.Status.ClaimInfo(v.Name)
	if info == nil {
		return fmt.Sprintf("is on the claim %s, of which nothing is known yet", claim.Name)
	}
	if info.IsShared() || claim.ReadOnly && slices.Contains(info.AccessModes, corev1.ReadOnlyMany) {
		return ""
	}
	return fmt.Sprintf("is on the claim %s, which only one node can use: its access modes %v lack ReadWriteMany; a "+
		"MigrationPolicy with allowClaimCopy lets the disks of dataVolumeTemplates be copied", claim.Name, info.AccessModes)
}

// shares reports whether the volume's disk is shared with other guests.
func (vmi *VirtualMachineInstance) shares(volume string) bool {
	return slices.ContainsFunc(vmi.Spec.Domain.Devices.Disks,
		func(d Disk) bool { return d.Name == volume && d.IsShared() })
}

// Method returns how the guest's disks get to the target.
func (vmi *VirtualMachineInstance) Method() MigrationMethod {
	if len(vmi.CopiedDisks()) > 0 {
		return MethodBlockMigration
	}
	return MethodLiveMigration
}

// SharesDisks reports whether the guest can write to a disk that both nodes of a migration have.
func (vmi *VirtualMachineInstance) SharesDisks() bool {
	return slices.ContainsFunc(vmi.Spec.Domain.Devices.Disks, func(d Disk) bool {
		_, readOnly := d.Target()
		v := vmi.Spec.Volume(d.Name)
		if v == nil || readOnly {
			return false
		}
		return v.HostDisk != nil || v.Claim() != nil && !v.Claim().Overlay && !v.Claim().ReadOnly && !vmi.Moves(v.Name)
	})
}

// CopiedDisks returns the disks that the target has files of its own for, and that the guest can write to or that
// are made of a config volume, which may hold other files by then. A migration copies them.
func (vmi *VirtualMachineInstance) CopiedDisks() []string {
	var out []string
	for _, d := range vmi.Spec.Domain.Devices.Disks {
		_, readOnly := d.Target()
		v := vmi.Spec.Volume(d.Name)
		if v == nil || readOnly && !v.IsConfig() {
			continue
		}
		if v.HostDisk == nil && (v.Claim() == nil || v.Claim().Overlay || vmi.Moves(v.Name)) {
			out = append(out, d.Name)
		}
	}
	return out
}
