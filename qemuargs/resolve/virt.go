package resolve

import (
	"cmp"
	"path"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// This file decides what only machines of arm64 have.

// board is what the machine types of an architecture are called: the newest one, and versioned ones.
type boardName struct{ architecture, alias, prefix string }

var boardNames = map[string]boardName{v1.AMD64: {v1.AMD64, "q35", typePrefix}, v1.ARM64: {v1.ARM64, "virt", "virt-"}}

// emulatedARM64 are the flags of the CPU model max: QEMU's own algorithm for pointer authentication takes a tenth of the time that
// the architecture's takes, and the machine types before 10.0 have the architecture's by default (target/arm/tcg/cpu64.c).
const emulatedARM64 = "pauth-impdef=on"

// virt makes a machine one of arm64.
func virt(m *qemuargs.Machine, why *Decisions) {
	const rule = "the node's with KVM; QEMU emulates version 3"
	why.add("gic", "host.accelerator", rule)
	m.GIC = qemuargs.GICv3
	if m.Accelerator == qemuargs.KVM {
		m.GIC = qemuargs.HostGIC
		return
	}
	m.CPU.Flags = append(m.CPU.Flags, emulatedARM64)
	why.add("cpu.flags["+emulatedARM64+"]", "host.accelerator", "pointer authentication as QEMU does it soonest")
}

// AAVMF is the firmware of arm64, by Debian's names. In the launcher's image the code is a qcow2 file without the zeros that fill its chip: of
// a raw file QEMU would read all 64 MiB into memory of its own.
const (
	aavmfCode      = "AAVMF_CODE.fd"
	aavmfPacked    = "AAVMF_CODE.qcow2"
	aavmfVariables = "AAVMF_VARS.fd"
	aavmfChipBytes = 64 << 20
)

// aavmf fills in the firmware of a machine of arm64.
func aavmf(f *qemuargs.Firmware, host Host, why *Decisions) {
	const fact = "host.firmwareDir"
	folder := cmp.Or(host.FirmwareDir, layout.FirmwareDirARM64)
	why.add("firmware.code", fact, "AAVMF; the launcher's image has it without its zeros")
	why.add("firmware.format", fact, "the launcher's image has qcow2, and Debian raw")
	why.add("firmware.chipBytes", "", "the size of the board's chips")
	why.add("firmware.variables.template", fact, "without keys")
	f.Code, f.Format, f.ChipBytes = path.Join(folder, aavmfPacked), qemuargs.QCOW2, aavmfChipBytes
	if host.FirmwareDir != "" {
		f.Code, f.Format = path.Join(folder, aavmfCode), ""
	}
	f.Variables.Template = path.Join(folder, aavmfVariables)
}

// ownInputs are a keyboard and a tablet, as KubeVirt's guests of arm64 have them: the board has no PS/2. Machines of amd64 have none.
func ownInputs(vmi *v1.VirtualMachineInstance, why *Decisions) []qemuargs.Input {
	const graphics = "spec.domain.devices.autoattachGraphicsDevice"
	devices := &vmi.Spec.Domain.Devices
	if vmi.Spec.Architecture != v1.ARM64 || !enabled(devices.AutoattachGraphicsDevice) {
		return nil
	}
	inputs := []qemuargs.Input{{Name: keyboardName, Keyboard: true, Port: 1}}
	by := []string{keyboardName}
	if len(devices.Inputs) == 0 {
		inputs, by = append(inputs, qemuargs.Input{Name: tabletName, Port: 2}), append(by, tabletName)
	}
	for _, name := range by {
		part := "inputs[" + name + "]"
		why.add(part, "spec.architecture "+graphics+" spec.domain.devices.inputs spec.domain.devices.autoattachInputDevice", "with graphics a keyboard, and a tablet unless there are inputs")
		for _, child := range []string{"name", "keyboard", "port", "pci"} {
			why.add(part+"."+child, "", "the machine's own, on the first ports of the USB controller")
		}
	}
	return inputs
}

// ownBy are the fields that ownInputs looks at, for a machine that can have such inputs.
func ownBy(m *qemuargs.Machine) string {
	if m.Arch != qemuargs.ARM64 {
		return ""
	}
	return " spec.domain.devices.autoattachGraphicsDevice"
}

// Names that no input of a VMI's can have.
const (
	keyboardName = "-keyboard"
	tabletName   = "-tablet"
)
