package qemuargs

import "cmp"

// Firmware is UEFI: OVMF in two flash chips, its code and the guest's variables. Both chips' contents are RAM to QEMU,
// and move with the guest: a guest that moved has the code that it started with, and its target writes the variables
// into the target's own file. QEMU refuses a chip of another size, so the sizes below are the same for every machine.
type Firmware struct {
	// Code is OVMF's program, that is only read: a file of CodeSize bytes, unless Format is qcow2.
	Code string `json:"code"`
	// Format of Code; empty for raw.
	Format ImageFormat `json:"format,omitempty"`
	// ChipBytes is the size of each flash chip of a machine of arm64; 0 stands for CodeBytes and VariablesBytes.
	ChipBytes int64     `json:"chipBytes,omitempty"`
	Variables Variables `json:"variables"`
	// SecureBoot lets only code in system management mode write to the flash chips (SMM has to be on). The firmware then
	// starts what the template's keys have signed.
	SecureBoot bool `json:"secureBoot,omitempty"`
}

// Sizes, in bytes, of OVMF's files: those of a firmware image of 4 MiB (Debian's names have 4M). UEFI's own limit for
// both together is the flash chip's place below 4 GiB, 8 MiB (hw/i386/pc_sysfw.c).
const (
	CodeBytes      = 4<<20 - VariablesBytes
	VariablesBytes = 528 << 10
)

// CodeSize returns the size of the chip with the code, in bytes.
func (f *Firmware) CodeSize() int64 { return cmp.Or(f.ChipBytes, CodeBytes) }

// VariablesSize returns the size of the chip with the variables, in bytes.
func (f *Firmware) VariablesSize() int64 { return cmp.Or(f.ChipBytes, VariablesBytes) }

// Variables are the guest's UEFI variables.
type Variables struct {
	// Path is a file of VariablesSize bytes that the guest writes to. The launcher makes the file before QEMU starts: a
	// copy of Template, which holds the first variables, and which may leave out the zeros at its end.
	Path     string `json:"path"`
	Template string `json:"template"`
	// InState: the file is in a folder of the volume with the guest's state, and outlives the machine. The launcher makes
	// the file only if there is none, and QEMU inherits the file: others who can write to the volume could put a link at
	// Path.
	InState bool `json:"inState,omitempty"`
}

// Switch is on or off; empty leaves the choice to QEMU.
type Switch string

// Switches.
const (
	On  Switch = "on"
	Off Switch = "off"
)

// The nodes of the flash chips, by the names of the chips.
const (
	codeNode      = "pflash0"
	variablesNode = "pflash1"
)

type flashFile struct {
	Driver   string `json:"driver"`
	NodeName string `json:"node-name"`
	Filename string `json:"filename"`
	ReadOnly bool   `json:"read-only"`
}

type flash struct {
	Driver   ImageFormat `json:"driver"`
	NodeName string      `json:"node-name"`
	ReadOnly bool        `json:"read-only"`
	File     string      `json:"file"`
}

// inherits returns the file with the variables, if they outlive the machine.
func (f *Firmware) inherits() []Inherited {
	if !f.Variables.InState {
		return nil
	}
	return []Inherited{{Kind: InheritedVariables}}
}

func (f *Firmware) args(files files) []Arg {
	args := []Arg{
		{Flag: "-blockdev", Value: flashFile{Driver: "file", NodeName: codeNode + ".file", Filename: f.Code, ReadOnly: true}},
		{Flag: "-blockdev", Value: flash{Driver: cmp.Or(f.Format, Raw), NodeName: codeNode, ReadOnly: true, File: codeNode + ".file"}},
	}
	variables := f.Variables.Path
	if f.Variables.InState {
		file := Inherited{Kind: InheritedVariables}
		variables, args = setPath(files.set(file)), append(args, addSet(files, file))
	}
	args = append(args,
		Arg{Flag: "-blockdev", Value: flashFile{Driver: "file", NodeName: variablesNode + ".file", Filename: variables}},
		Arg{Flag: "-blockdev", Value: flash{Driver: Raw, NodeName: variablesNode, File: variablesNode + ".file"}})
	if f.SecureBoot {
		args = append(args, Arg{Flag: "-global", Value: Options{{Key: "driver", Value: "cfi.pflash01"},
			{Key: "property", Value: "secure"}, {Key: "value", Value: "on"}}})
	}
	return args
}

// board returns the firmware's properties of -machine.
func (f *Firmware) board() Options {
	if f == nil {
		return nil
	}
	return Options{{Key: "pflash0", Value: codeNode}, {Key: "pflash1", Value: variablesNode}}
}
