package v1

// Chassis is what SMBIOS tells the guest of its chassis (QEMU -smbios type=3). Each is a text of printable characters.
type Chassis struct {
	// Manufacturer of the chassis. Default: QEMU.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Manufacturer string `json:"manufacturer,omitempty"`
	// Version of the chassis. Default: the machine type.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Version string `json:"version,omitempty"`
	// Serial number of the chassis. Default: none.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Serial string `json:"serial,omitempty"`
	// Asset tag of the chassis. Default: none.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Asset string `json:"asset,omitempty"`
	// SKU number of the chassis. Default: none.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	SKU string `json:"sku,omitempty"`
}
