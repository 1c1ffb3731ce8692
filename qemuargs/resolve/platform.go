package resolve

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// attach adds the devices other than disks and network cards.
func attach(devices *v1.Devices, host Host, m *qemuargs.Machine, slots *allocator) {
	if devices.Rng != nil {
		m.RNG = &qemuargs.RNG{PCI: integrated(rngSlot)}
	}
	if enabled(devices.AutoattachMemBalloon) {
		m.Balloon = &qemuargs.Balloon{PCI: integrated(balloonSlot)}
	}
	if devices.Watchdog != nil {
		m.Watchdog = &qemuargs.Watchdog{Action: devices.Watchdog.I6300ESB.Action, PCI: integrated(watchdogSlot)}
	}
	inputs(devices, m, slots)
	if enabled(devices.AutoattachSerialConsole) {
		m.Serial = &qemuargs.Serial{}
	}
	if enabled(devices.AutoattachGraphicsDevice) {
		m.Graphics = graphics(devices.Video, host)
	}
	// Typing needs graphics. Without ACPI a guest resets by the keyboard's controller.
	m.PS2 = m.Graphics != nil || m.NoACPI
	m.Agent = &qemuargs.Agent{PCI: integrated(agentSlot)}
}

func inputs(devices *v1.Devices, m *qemuargs.Machine, slots *allocator) {
	ports := 0
	for _, in := range devices.Inputs {
		input := qemuargs.Input{Name: in.Name}
		if in.Bus == "virtio" {
			address := slots.integrate()
			input.PCI = &address
		} else {
			ports++
			input.Port = ports
		}
		m.Inputs = append(m.Inputs, input)
	}
	if ports > 0 {
		m.USB = &qemuargs.USB{Ports: ports, PCI: integrated(usbSlot)}
	}
}

var displays = map[string]qemuargs.Display{"vga": qemuargs.VGA, "virtio": qemuargs.VirtioVGA, "bochs": qemuargs.Bochs, "ramfb": qemuargs.RAMFB}

func graphics(video *v1.VideoDevice, host Host) *qemuargs.Graphics {
	g := &qemuargs.Graphics{Display: qemuargs.VGA, Socket: layout.Below(host.Root, layout.VNCSocket)}
	if video != nil {
		g.Display = displays[video.Type]
	}
	if g.Display != qemuargs.RAMFB {
		address := integrated(graphicsSlot)
		g.PCI = &address
	}
	return g
}

func clock(c *v1.Clock) qemuargs.Clock {
	var out qemuargs.Clock
	if c == nil || c.Timer == nil {
		return out
	}
	if t := c.Timer.HPET; t != nil {
		out.NoHPET = !enabled(t.Present)
	}
	if t := c.Timer.PIT; t != nil {
		out.NoPIT, out.PITPolicy = !enabled(t.Present), t.TickPolicy
	}
	if t := c.Timer.RTC; t != nil {
		out.RTCCatchUp = t.TickPolicy == "catchup"
		out.RTCSource = map[string]string{"guest": "vm", "wall": "host"}[t.Track]
	}
	return out
}

func serialBIOS(f *v1.Firmware) bool {
	return f.Bootloader != nil && f.Bootloader.BIOS != nil && ptr.Deref(f.Bootloader.BIOS.UseSerial, false)
}

func kernel(vmi *v1.VirtualMachineInstance, host Host, path *field.Path) (*qemuargs.Kernel, *field.Error) {
	container := vmi.KernelContainer()
	if container == nil {
		return nil, nil
	}
	switch {
	case host.Kernel == nil:
		return nil, field.Invalid(path, container.Image, "the launcher has not inspected it")
	case host.Kernel.Error != "":
		return nil, field.Invalid(path, container.Image, host.Kernel.Error)
	}
	return &qemuargs.Kernel{Path: host.Kernel.Path, Initrd: host.Kernel.Initrd, Args: vmi.Spec.Domain.Firmware.KernelBoot.KernelArgs}, nil
}
