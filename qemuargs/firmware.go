package qemuargs

import "cmp"

// Firmware is UEFI: OVMF in two flash chips, its code and the guest's variables. Both chips' contents are RAM to QEMU, and
// move with the guest: a guest that moved has the code that it started with, and its target writes the variables into the
// target's own file. QEMU refuses a chip of another size, so the sizes below are the same for every machine.
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

// Sizes, in bytes, of OVMF's files: those of a firmware image of 4 MiB (Debian's names have 4M). UEFI's own limit for both
// together is the flash chip's place below 4 GiB, 8 MiB (hw/i386/pc_sysfw.c).
const (
	CodeBytes      = 4<<20 - VariablesBytes
	VariablesBytes = 528 << 10
)

// CodeSize is the size of the chip with the code, in bytes.
func (f *Firmware) CodeSize() int64 { return cmp.Or(f.ChipBytes, CodeBytes) }

// VariablesSize is the size of the chip with the variables, in bytes.
func (f *Firmware) VariablesSize() int64 { return cmp.Or(f.ChipBytes, VariablesBytes) }

// Variables are the guest's UEFI variables.
type Variables struct {
	// Path is a file of VariablesSize bytes that the guest writes to. The launcher makes the file before QEMU starts: a copy of
	// Template, which holds the first variables, and which may leave out the zeros at its end.
	Path     string `json:"path"`
	Template string `json:"template"`
	// InState: the file is in a folder of the volume with the guest's state, and outlives the machine. The launcher makes the
	// file only if there is none, and QEMU inherits the file: others who can write to the volume could put a link at Path.
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

type codeFile struct {
	Driver   string `json:"driver" rule:"the firmware is a file"`
	NodeName string `json:"node-name" rule:"the name by which the flash chip finds the file"`
	Filename string `json:"filename" from:"code"`
	ReadOnly bool   `json:"read-only" rule:"the guest does not write to the firmware's code"`
}

type variablesFile struct {
	Driver   string `json:"driver" rule:"the variables are a file"`
	NodeName string `json:"node-name" rule:"the name by which the flash chip finds the file"`
	Filename string `json:"filename" from:"variables.path,variables.inState"`
	ReadOnly bool   `json:"read-only" rule:"the guest writes its variables"`
}

type codeFlash struct {
	Driver   ImageFormat `json:"driver" from:"format" rule:"raw, or qcow2, of which QEMU reads no zeros into the chip"`
	NodeName string      `json:"node-name" rule:"the flash chip's name"`
	ReadOnly bool        `json:"read-only" rule:"the guest does not write to the firmware's code"`
	File     string      `json:"file" rule:"the file of the flash chip"`
}

type variablesFlash struct {
	Driver   ImageFormat `json:"driver" rule:"a flash chip's content is raw"`
	NodeName string      `json:"node-name" rule:"the flash chip's name"`
	ReadOnly bool        `json:"read-only" rule:"the guest writes its variables"`
	File     string      `json:"file" rule:"the file of the flash chip"`
}

// args are none for a machine with SeaBIOS. files are those that QEMU inherits.
func (f *Firmware) args(files descriptors) []Arg {
	if f == nil {
		return nil
	}
	of := Part{Field: "firmware"}
	args := []Arg{
		{Flag: "-blockdev", Value: codeFile{Driver: "file", NodeName: codeNode + ".file", Filename: f.Code, ReadOnly: true}, Of: of},
		{Flag: "-blockdev", Value: codeFlash{Driver: cmp.Or(f.Format, Raw), NodeName: codeNode, ReadOnly: true, File: codeNode + ".file"}, Of: of},
	}
	variables := f.Variables.Path
	if f.Variables.InState {
		set, arg := inheritedSet(files[Inherited{Kind: InheritedVariables}])
		arg.Of, arg.From = of, "variables.inState"
		variables, args = set, append(args, arg)
	}
	args = append(args,
		Arg{Flag: "-blockdev", Value: variablesFile{Driver: "file", NodeName: variablesNode + ".file", Filename: variables}, Of: of},
		Arg{Flag: "-blockdev", Value: variablesFlash{Driver: Raw, NodeName: variablesNode, File: variablesNode + ".file"}, Of: of})
	if f.SecureBoot {
		args = append(args, Arg{Flag: "-global", Value: Options{{Key: "driver", Value: "cfi.pflash01", Rule: "both flash chips"},
			{Key: "property", Value: "secure", Rule: "only system management mode writes to them"}, {Key: "value", Value: "on", Rule: "as secure boot needs it"}}, Of: of, From: "secureBoot"})
	}
	return args
}

// board are the firmware's properties of -machine.
func (f *Firmware) board() Options {
	if f == nil {
		return nil
	}
	return Options{{Key: "pflash0", Value: codeNode, From: "firmware"}, {Key: "pflash1", Value: variablesNode, From: "firmware"}}
}
