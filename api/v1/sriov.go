package v1

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// HasSRIOV says whether the guest has a network card of the node.
func (d *Devices) HasSRIOV() bool {
	return slices.ContainsFunc(d.Interfaces, func(n Interface) bool { return n.SRIOV != nil })
}

// LocksMemory says whether QEMU locks memory: all of the guest's, if a device of the node reads and writes it.
func (d *DomainSpec) LocksMemory() bool { return d.Memory.LocksMemory() || d.Devices.HasSRIOV() }

// validateSRIOV refuses what a network card of the node cannot be. connected says whether the interface has a network.
func validateSRIOV(nic *Interface, network Network, connected bool, path *field.Path) field.ErrorList {
	if nic.SRIOV == nil {
		return nil
	}
	var errs field.ErrorList
	if connected && (network.Multus == nil || network.IsPods()) {
		errs = append(errs, field.Forbidden(path.Child("sriov"), "sriov is for a network of multus beside the pod's own: its NetworkAttachmentDefinition names the resource of the cards"))
	}
	if nic.Model != "" && nic.Model != "virtio" {
		errs = append(errs, field.Forbidden(path.Child("model"), "the guest sees the card of the node, whose model it is: leave the model out"))
	}
	if nic.State == LinkUp || nic.State == LinkDown {
		errs = append(errs, field.Invalid(path.Child("state"), nic.State, fmt.Sprintf("%q interface's state %q is not supported for SR-IOV NICs", nic.Name, nic.State)))
	}
	return errs
}
