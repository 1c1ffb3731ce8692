package qemuargs

// Chassis holds the strings of SMBIOS structure type 3 (Chassis).
type Chassis struct {
	Manufacturer string `json:"manufacturer,omitempty"`
	Version      string `json:"version,omitempty"`
	Serial       string `json:"serial,omitempty"`
	Asset        string `json:"asset,omitempty"`
	SKU          string `json:"sku,omitempty"`
}

// args are none for a machine whose chassis is QEMU's own.
func (c *Chassis) args() []Arg {
	if c == nil {
		return nil
	}
	o := Options{{Key: "type", Value: "3", Rule: "the structure that describes the chassis"}}
	for _, p := range []Option{{Key: "manufacturer", Value: c.Manufacturer, From: "manufacturer"}, {Key: "version", Value: c.Version, From: "version"},
		{Key: "serial", Value: c.Serial, From: "serial"}, {Key: "asset", Value: c.Asset, From: "asset"}, {Key: "sku", Value: c.SKU, From: "sku"}} {
		if p.Value != "" {
			o = append(o, p)
		}
	}
	return []Arg{{Flag: "-smbios", Value: o, Of: Part{Field: "chassis"}}}
}
