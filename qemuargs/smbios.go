package qemuargs

// SMBIOS holds the strings of SMBIOS structure type 1 (System).
type SMBIOS struct {
	Manufacturer string `json:"manufacturer,omitempty"`
	Product      string `json:"product,omitempty"`
	Version      string `json:"version,omitempty"`
	SKU          string `json:"sku,omitempty"`
	Family       string `json:"family,omitempty"`
	Serial       string `json:"serial,omitempty"`
}

func (m *Machine) smbios() []Arg {
	s := m.SMBIOS
	return []Arg{{Flag: "-smbios", Value: structure("1", Options{
		{Key: "manufacturer", Value: s.Manufacturer}, {Key: "product", Value: s.Product},
		{Key: "version", Value: s.Version}, {Key: "sku", Value: s.SKU}, {Key: "family", Value: s.Family},
		{Key: "serial", Value: s.Serial}, {Key: "uuid", Value: m.UUID}})}}
}

// structure returns the value of -smbios for a structure's strings. Those that are empty are QEMU's own.
func structure(number string, texts Options) Options {
	out := Options{{Key: "type", Value: number}}
	for _, text := range texts {
		if text.Value != "" {
			out = append(out, text)
		}
	}
	return out
}
