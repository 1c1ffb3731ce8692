package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TPMDevice is a TPM 2.0, which a program beside QEMU emulates.
type TPMDevice struct {
	// Enabled: false leaves the TPM out. Default: true.
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
	// Persistent keeps the TPM's state on a claim that belongs to the VirtualMachine, so that it outlives the
	// VirtualMachineInstance. The claim of a VirtualMachineInstance without a VirtualMachine goes with it. Default: false.
	// +optional
	Persistent *bool `json:"persistent,omitempty"`
}

// TPM returns the machine's TPM, or nil.
func (d *DomainSpec) TPM() *TPMDevice {
	if t := d.Devices.TPM; t != nil && ptr.Deref(t.Enabled, true) {
		return t
	}
	return nil
}

// PersistentTPM reports whether the TPM's state outlives the VirtualMachineInstance.
func (d *DomainSpec) PersistentTPM() bool {
	t := d.TPM()
	return t != nil && ptr.Deref(t.Persistent, false)
}

// ReasonTPMNotMigratable: the guest's TPM has failed, and has no state that could move with the guest.
const ReasonTPMNotMigratable = "TPMNotLiveMigratable"

// tpmStays returns why a TPM keeps its guest on the node, or an empty text if it does not.
func (vmi *VirtualMachineInstance) tpmStays() string {
	if c := vmi.Status.Condition(ConditionTPMFailed); c == nil || c.Status != metav1.ConditionTrue {
		return ""
	}
	return "the guest's TPM has failed, so that there is no state of it that could move; the guest can move when the VM " +
		"was stopped and started"
}
