package qemuargs

// Chassis holds the strings of SMBIOS structure type 3 (Chassis).
type Chassis struct {
	Manufacturer string `json:"manufacturer,omitempty"`
	Version      string `json:"version,omitempty"`
	Serial       string `json:"serial,omitempty"`
	Asset        string `json:"asset,omitempty"`
	SKU          string `json:"sku,omitempty"`
}

// args returns no arguments for a machine whose chassis is QEMU's own.
func (c *Chassis) args() []Arg {
	if c == nil {
		return nil
	}
	return []Arg{{Flag: "-smbios", Value: structure("3", Options{
		{Key: "manufacturer", Value: c.Manufacturer}, {Key: "version", Value: c.Version}, {Key: "serial", Value: c.Serial},
		{Key: "asset", Value: c.Asset}, {Key: "sku", Value: c.SKU}})}}
}
