package qemuargs

// Serial is the first serial port; the launcher is at its other end.
type Serial struct{}

type serialProps struct {
	Driver  string `json:"driver"`
	ID      string `json:"id"`
	Chardev string `json:"chardev"`
	Index   int    `json:"index"`
}

// serial returns the arguments of the serial port; file is the descriptor of its other end. The board virt has one
// port, a PL011, for which there is no -device.
func (m *Machine) serial(file string) []Arg {
	const id = "serial0"
	args := []Arg{{Flag: "-chardev", Value: socket(id, file)}}
	if m.isVirt() {
		return append(args, Arg{Flag: "-serial", Value: "chardev:" + id})
	}
	return append(args, Arg{Flag: "-device", Value: serialProps{Driver: "isa-serial", ID: id, Chardev: id, Index: 0}})
}
