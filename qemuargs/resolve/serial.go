package resolve

import "github.com/kubeqemu/kubeqemu/qemuargs"

// serial adds the serial port, unless it is turned off.
func serial(b *build) {
	if enabled(b.devices().AutoattachSerialConsole) {
		b.m.Serial = &qemuargs.Serial{}
	}
}
