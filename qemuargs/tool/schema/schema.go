// Package schema is what one QEMU binary says of itself: the arguments that it takes, its devices with their
// properties, machine types, CPU models, and the types of its QAPI. A Schema is captured once and kept in a file;
// whoever checks arguments then needs no QEMU. The package is pure: it starts nothing and opens no file.
package schema

import (
	"slices"
	"strings"
)

// Schema is one QEMU. All maps have QEMU's names as keys.
type Schema struct {
	Format  int    `json:"format"`  // of the file; see Format
	Version string `json:"version"` // of QEMU, such as 7.2.22
	Package string `json:"package"` // QEMU's own name of its package, such as "Debian 1:7.2+dfsg-7"; may be empty
	Arch    string `json:"arch"`    // of the guest, such as x86_64
	// Flags are the command line's options, without the dash.
	Flags []string `json:"flags"`
	// Options are the parameters of options, with their types string, boolean, number or size. An option that is
	// missing, or has none, takes parameters that QEMU does not list.
	Options map[string]map[string]string `json:"options"`
	// Commands are QMP commands whose types the command line has too: the name of the type of the arguments, or, with
	// "returns " before the command's name, of the result.
	Commands map[string]string `json:"commands"`
	Types    map[string]Type   `json:"types"` // of QAPI, by names that mean nothing (qapi/introspect.json)
	// Enums are the values that properties of a type take. QEMU says it of some types only.
	Enums map[string][]string `json:"enums"`
	// Lists are lists of properties: types by names. Devices with the same properties share one.
	Lists    []map[string]string `json:"lists"`
	Devices  map[string]Device   `json:"devices"`
	Abstract []string            `json:"abstract"` // types of devices that only -global takes
	Machines map[string]Machine  `json:"machines"` // also by their aliases
	CPUs     map[string]CPU      `json:"cpus"`
	// Accelerators are indexes of Lists.
	Accelerators map[string]int `json:"accelerators"`
}

// Type is a type of QAPI.
type Type struct {
	Kind       string            `json:"kind"`                 // object, alternate, array, enum or builtin
	JSON       string            `json:"json,omitempty"`       // of a builtin: string, int, number, boolean, null or value
	Element    string            `json:"element,omitempty"`    // of an array
	Values     []string          `json:"values,omitempty"`     // of an enum
	Members    []Member          `json:"members,omitempty"`    // of an object or alternate
	Tag        string            `json:"tag,omitempty"`        // the member that picks a variant
	Variants   map[string]string `json:"variants,omitempty"`   // types by the tag's values
	Deprecated []string          `json:"deprecated,omitempty"` // members or values
}

// Member is a member of an object, or a choice of an alternate.
type Member struct {
	Name     string `json:"name,omitempty"`
	Type     string `json:"type"`
	Optional bool   `json:"optional,omitempty"`
}

// Unknown is the list of a device that could not be asked.
const Unknown = -1

// Device is what -device takes, or -global.
type Device struct {
	List      int    `json:"list"`          // index of Lists, or Unknown
	Bus       string `json:"bus,omitempty"` // the type of the bus that it sits on
	Alias     string `json:"alias,omitempty"`
	Creatable bool   `json:"creatable,omitempty"` // -device takes it
}

// Machine is a machine type.
type Machine struct {
	Name       string `json:"name"` // of the type that an alias stands for
	Deprecated bool   `json:"deprecated,omitempty"`
	List       int    `json:"list"` // index of Lists, or Unknown
}

// CPU is a CPU model.
type CPU struct {
	List       int  `json:"list"` // index of Lists, or Unknown
	Deprecated bool `json:"deprecated,omitempty"`
}

// Release returns the version without its last number, such as 7.2.
func (s *Schema) Release() string {
	parts := strings.SplitN(s.Version, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

// List returns a list of properties by its index; nil if nothing is known.
func (s *Schema) List(index int) map[string]string {
	if index < 0 || index >= len(s.Lists) {
		return nil
	}
	return s.Lists[index]
}

// Device finds a device by its name or alias, and returns its name too.
func (s *Schema) Device(name string) (string, Device, bool) {
	if d, ok := s.Devices[name]; ok {
		return name, d, true
	}
	for full, d := range s.Devices {
		if d.Alias == name && name != "" {
			return full, d, true
		}
	}
	return name, Device{}, false
}

// HasFlag reports whether the command line has the option, named without its dash.
func (s *Schema) HasFlag(name string) bool { return slices.Contains(s.Flags, name) }
