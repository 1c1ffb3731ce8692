package v1

import "k8s.io/utils/ptr"

// TPMDevice is a TPM 2.0, which a program beside QEMU emulates.
type TPMDevice struct {
	// Enabled: false leaves the TPM out. Default: true.
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
	// Persistent is refused: no TPM state outlives the VirtualMachineInstance yet.
	// +optional
	Persistent UnsupportedPersistence `json:"persistent,omitempty"`
}

// TPM is the machine's TPM, or nil.
func (d *DomainSpec) TPM() *TPMDevice {
	if t := d.Devices.TPM; t != nil && ptr.Deref(t.Enabled, true) {
		return t
	}
	return nil
}
