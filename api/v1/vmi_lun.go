package v1

// LunTarget is a SCSI device of the node, whose commands the guest sends itself. The volume must be a claim of mode
// Block, or a DataVolume with one.
type LunTarget struct {
	// Bus is scsi, which is also the default.
	// +optional
	// +kubebuilder:validation:Enum=virtio;sata;scsi;usb
	Bus DiskBus `json:"bus,omitempty"`
	// ReadOnly: the guest cannot write. Default: false.
	// +optional
	ReadOnly bool `json:"readonly,omitempty"`

	// Reservation is never supported: reservations go through qemu-pr-helper, which needs CAP_SYS_RAWIO on the node.
	// +optional
	Reservation NeverBool `json:"reservation,omitempty" never:"reservations go through qemu-pr-helper, which needs CAP_SYS_RAWIO on the node"`
}
