package resolve

import (
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// unlessOff is the rule of devices that are there by default.
const unlessOff = "there unless it is turned off"

// attach adds the devices other than disks and network cards.
func attach(vmi *v1.VirtualMachineInstance, host Host, m *qemuargs.Machine, slots *allocator, why *Decisions) {
	domain := &vmi.Spec.Domain
	devices := &domain.Devices
	if devices.Rng != nil {
		m.RNG = &qemuargs.RNG{PCI: integrated(rngSlot), Transitional: devices.Transitional()}
		why.add("rng.transitional", transitionalField, "")
		why.add("rng", "spec.domain.devices.rng", "")
		why.add("rng.pci", "", ownSlot)
	}
	why.add("balloon", "spec.domain.devices.autoattachMemBalloon", unlessOff)
	if enabled(devices.AutoattachMemBalloon) {
		m.Balloon = &qemuargs.Balloon{PCI: integrated(balloonSlot), NoReporting: host.NoFreePageReporting || keepsPages(vmi), Transitional: devices.Transitional()}
		why.add("balloon.transitional", transitionalField, "")
		why.add("balloon.noReporting", "host.noFreePageReporting metadata.annotations["+v1.NoFreePageReportingAnnotation+"] spec.domain.memory.hugepages spec.domain.cpu.dedicatedCpuPlacement", "a guest of huge pages, with CPUs of its own, or with the annotation keeps its pages")
		why.add("balloon.pci", "", ownSlot)
	}
	if devices.Watchdog != nil {
		m.Watchdog = &qemuargs.Watchdog{Action: devices.Watchdog.I6300ESB.Action, PCI: integrated(watchdogSlot)}
		why.add("watchdog", "spec.domain.devices.watchdog.name", "")
		why.add("watchdog.action", "spec.domain.devices.watchdog.i6300esb.action", "")
		why.add("watchdog.pci", "", ownSlot)
	}
	panicDevices(devices, m, why)
	sound(devices.Sound, m, why)
	inputs(devices, ownInputs(vmi, why), m, slots, why)
	why.add("serial", "spec.domain.devices.autoattachSerialConsole", unlessOff)
	if enabled(devices.AutoattachSerialConsole) {
		m.Serial = &qemuargs.Serial{}
	}
	why.add("graphics", "spec.domain.devices.autoattachGraphicsDevice", unlessOff)
	if enabled(devices.AutoattachGraphicsDevice) {
		m.Graphics = graphics(devices.Video, m.Firmware != nil, host, why)
		if m.Arch == qemuargs.ARM64 && m.Graphics.Display != qemuargs.RAMFB {
			why.add("graphics.display", "spec.domain.devices.video.type", "virtio, unless ramfb is named: the board of arm64 has no VGA")
			m.Graphics.Display = qemuargs.VirtioGPU
		}
	}
	// Typing needs graphics. Without ACPI a guest resets by the keyboard's controller.
	m.PS2 = (m.Graphics != nil || m.NoACPI) && m.Arch == qemuargs.AMD64
	why.add("ps2", "spec.domain.devices.autoattachGraphicsDevice spec.domain.features.acpi.enabled", "a keyboard needs graphics; without ACPI the guest resets by the keyboard's controller")
	m.Agent = &qemuargs.Agent{PCI: integrated(agentSlot), Transitional: devices.Transitional()}
	why.add("agent.transitional", transitionalField, "")
	why.add("agent", "", "every machine has the port of QEMU's guest agent")
	why.add("agent.pci", "", ownSlot)
}

// inputs adds own, and the inputs of the VMI.
func inputs(devices *v1.Devices, own []qemuargs.Input, m *qemuargs.Machine, slots *allocator, why *Decisions) {
	m.Inputs = own
	ports, inputs := 0, len(m.Inputs)
	const list = "spec.domain.devices.inputs"
	for i, in := range devices.Inputs {
		by := entry{to: why, list: "inputs", name: in.Name, field: list, index: i}
		by.add("", ".name .bus", "each input is a tablet")
		by.add("name", ".name", "")
		by.add("port", list+"[..].bus", "the next port of the USB controller")
		by.add("pci", ".bus", "a tablet on bus usb is no PCI device")
		input := qemuargs.Input{Name: in.Name}
		if in.Bus == "virtio" {
			by.add("pci", interfaces+"[*].model "+list+"[..].bus "+transitionalField+" "+pinFields, nextSlot)
			address := slots.integrate()
			input.PCI = &address
		} else {
			inputs++
			input.Port = inputs
		}
		m.Inputs = append(m.Inputs, input)
	}
	ports = inputs + usbDisks(m.Disks)
	if ports > 0 {
		m.USB = &qemuargs.USB{Ports: ports, PCI: integrated(usbSlot)}
		who := list + "[*].bus " + drives + ownBy(m)
		why.add("usb", who, "inputs and disks on bus usb need a controller")
		why.add("usb.ports", who, "one for each input and disk on bus usb")
		why.add("usb.pci", "", ownSlot)
	}
}

var displays = map[string]qemuargs.Display{"vga": qemuargs.VGA, "virtio": qemuargs.VirtioVGA, "bochs": qemuargs.Bochs, "ramfb": qemuargs.RAMFB}

func graphics(video *v1.VideoDevice, uefi bool, host Host, why *Decisions) *qemuargs.Graphics {
	const videoType = "spec.domain.devices.video.type"
	why.add("graphics.display", videoType+" spec.domain.firmware.bootloader.efi", "unless a type is named, vga, and bochs with UEFI")
	why.add("graphics.pci", videoType, ownSlot+"; ramfb is no PCI device")
	why.add("graphics.socket", "", "the launcher's VNC socket")
	g := &qemuargs.Graphics{Display: qemuargs.VGA, Socket: layout.Below(host.Root, layout.VNCSocket)}
	switch {
	case video != nil:
		g.Display = displays[video.Type]
	case uefi: // which needs no VGA, nor do its guests
		g.Display = qemuargs.Bochs
	}
	if g.Display != qemuargs.RAMFB {
		address := integrated(graphicsSlot)
		g.PCI = &address
	}
	return g
}
