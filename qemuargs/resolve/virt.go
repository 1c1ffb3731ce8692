package resolve

import (
	"cmp"
	"path"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// This file decides what only machines of arm64 have.

// boardName is what the machine types of an architecture are called: the newest one, and versioned ones.
type boardName struct{ architecture, alias, prefix string }

var boardNames = map[string]boardName{v1.AMD64: {v1.AMD64, "q35", typePrefix}, v1.ARM64: {v1.ARM64, "virt", "virt-"}}

// emulatedARM64 are the flags of the CPU model max: QEMU's own algorithm for pointer authentication takes a tenth of
// the time that the architecture's takes, and the machine types before 10.0 have the architecture's by default
// (target/arm/tcg/cpu64.c).
const emulatedARM64 = "pauth-impdef=on"

// virt makes a machine one of arm64.
func virt(m *qemuargs.Machine) {
	m.GIC = qemuargs.GICv3 // which QEMU emulates
	if m.Accelerator == qemuargs.KVM {
		m.GIC = qemuargs.HostGIC
		return
	}
	m.CPU.Flags = append(m.CPU.Flags, emulatedARM64)
}

// AAVMF is the firmware of arm64, by Debian's names. In the launcher's image the code is a qcow2 file without the zeros
// that fill its chip: of a raw file QEMU would read all 64 MiB into memory of its own.
const (
	aavmfCode      = "AAVMF_CODE.fd"
	aavmfPacked    = "AAVMF_CODE.qcow2"
	aavmfVariables = "AAVMF_VARS.fd"
	aavmfChipBytes = 64 << 20
)

// aavmf fills in the firmware of a machine of arm64.
func aavmf(f *qemuargs.Firmware, host Host) {
	folder := cmp.Or(host.FirmwareDir, layout.FirmwareDirARM64)
	f.Code, f.Format, f.ChipBytes = path.Join(folder, aavmfPacked), qemuargs.QCOW2, aavmfChipBytes
	if host.FirmwareDir != "" {
		f.Code, f.Format = path.Join(folder, aavmfCode), ""
	}
	f.Variables.Template = path.Join(folder, aavmfVariables)
}
