package resolve

import (
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// inputs adds the board's own inputs and those of the VMI, and the USB controller that inputs and disks need. Inputs
// have its first ports.
func inputs(b *build) {
	b.m.Inputs = ownInputs(b.vmi)
	ports := len(b.m.Inputs)
	for _, in := range b.devices().Inputs {
		input := qemuargs.Input{Name: in.Name}
		if in.Bus == "virtio" {
			address := b.slots.integrate(partOf("inputs", in.Name))
			input.PCI = &address
		} else {
			ports++
			input.Port = ports
		}
		b.m.Inputs = append(b.m.Inputs, input)
	}
	if ports += usbDisks(b.m.Disks); ports > 0 {
		b.m.USB = &qemuargs.USB{Ports: ports, PCI: integrated(usbSlot)}
	}
}

// Names that no input of a VMI's can have.
const (
	keyboardName = "-keyboard"
	tabletName   = "-tablet"
)

// ownInputs returns a keyboard, and a tablet unless the VMI has inputs, as KubeVirt's guests of arm64 have them: the
// board has no PS/2. Machines of amd64 have none.
func ownInputs(vmi *v1.VirtualMachineInstance) []qemuargs.Input {
	devices := &vmi.Spec.Domain.Devices
	if vmi.Spec.Architecture != v1.ARM64 || !enabled(devices.AutoattachGraphicsDevice) {
		return nil
	}
	inputs := []qemuargs.Input{{Name: keyboardName, Keyboard: true, Port: 1}}
	if len(devices.Inputs) == 0 {
		inputs = append(inputs, qemuargs.Input{Name: tabletName, Port: 2})
	}
	return inputs
}

// usbDisks returns how many disks are on the USB controller.
func usbDisks(disks []qemuargs.Disk) (n int) {
	for _, d := range disks {
		if d.USBPort > 0 {
			n++
		}
	}
	return n
}

// usbInputs returns how many inputs are on the USB controller.
func usbInputs(d *v1.Devices) (n int) {
	for _, in := range d.Inputs {
		if in.Bus == "usb" {
			n++
		}
	}
	return n
}
