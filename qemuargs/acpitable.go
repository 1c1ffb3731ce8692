package qemuargs

// ACPITable is a table that the guest finds beside QEMU's own.
type ACPITable struct {
	// Name is the table's signature, four letters.
	Name string `json:"name"`
	// Volume holds the table. The launcher looks at the table, and copies it to Path.
	Volume string `json:"volume"`
	Path   string `json:"path"`
}

func (t ACPITable) args() []Arg {
	return []Arg{{Flag: "-acpitable", Value: Options{{Key: "sig", Value: t.Name}, {Key: "file", Value: t.Path}}}}
}
