package v1

import (
	"regexp"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

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

// smbiosText is a text of SMBIOS. An empty one is QEMU's own.
var smbiosText = regexp.MustCompile(`^[ -~]{0,256}$`)

func validateChassis(c *Chassis, path *field.Path) field.ErrorList {
	if c == nil {
		return nil
	}
	var errs field.ErrorList
	for _, f := range []struct{ name, text string }{{"asset", c.Asset}, {"manufacturer", c.Manufacturer}, {"serial", c.Serial}, {"sku", c.SKU}, {"version", c.Version}} {
		if !smbiosText.MatchString(f.text) {
			errs = append(errs, field.Invalid(path.Child(f.name), f.text, "must be at most 256 printable characters of ASCII"))
		}
	}
	return errs
}
