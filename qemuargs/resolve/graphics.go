package resolve

import (
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// graphics adds the graphics card, unless it is turned off, and the keyboard of a PC.
func graphics(b *build) {
	if enabled(b.devices().AutoattachGraphicsDevice) {
		b.m.Graphics = &qemuargs.Graphics{Display: display(b), Socket: layout.Below(b.host.Root, layout.VNCSocket)}
		if b.m.Graphics.Display != qemuargs.RAMFB {
			address := integrated(graphicsSlot)
			b.m.Graphics.PCI = &address
		}
	}
	// Typing needs graphics. Without ACPI a guest resets by the keyboard's controller.
	b.m.PS2 = (b.m.Graphics != nil || b.m.NoACPI) && b.m.Arch == qemuargs.AMD64
}

// display returns the card that the VMI names. Without a name it is VGA, or what a guest with UEFI has instead: neither
// firmware nor guest needs a VGA's registers. The board of arm64 has no VGA.
func display(b *build) qemuargs.Display {
	named := map[string]qemuargs.Display{"vga": qemuargs.VGA, "virtio": qemuargs.VirtioVGA, "bochs": qemuargs.Bochs,
		"ramfb": qemuargs.RAMFB}
	video := b.devices().Video
	switch {
	case video != nil && video.Type == "ramfb":
		return qemuargs.RAMFB
	case b.m.Arch == qemuargs.ARM64:
		return qemuargs.VirtioGPU
	case video != nil:
		return named[video.Type]
	case b.m.Firmware != nil:
		return qemuargs.Bochs
	}
	return qemuargs.VGA
}
