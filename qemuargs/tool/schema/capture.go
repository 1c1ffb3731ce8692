package schema

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Ask runs a QMP command and decodes the answer into result. Its error wraps ErrRefused where QEMU answered with an
// error, and ErrEnded where QEMU has ended.
type Ask func(command string, arguments, result any) error

// The errors of an Ask.
var (
	ErrRefused = errors.New("QEMU refused")
	ErrEnded   = errors.New("QEMU has ended")
)

// Bounds of what a QEMU is believed: QEMU 11.1 has 1,300 types, 550 devices with 430 properties at most, and 190 CPU
// models.
const (
	maxTypes      = 20_000
	maxDevices    = 5_000
	maxProperties = 5_000
	maxDeaths     = 16
)

// Capture asks a QEMU. help is what it prints for -help. connect starts it, with the machine "none", and once more each
// time that a question has ended it: QEMU 7.2 aborts when it is asked for a device whose module is not installed.
func Capture(connect func() (Ask, error), help string) (*Schema, error) {
	c := &capturer{connect: connect, lists: map[string]int{}, s: &Schema{Format: Format, Flags: flags(help), Options: map[string]map[string]string{}, Commands: map[string]string{},
		Types: map[string]Type{}, Enums: map[string][]string{}, Devices: map[string]Device{}, Machines: map[string]Machine{}, CPUs: map[string]CPU{}, Accelerators: map[string]int{}}}
	var err error
	if c.ask, err = connect(); err != nil {
		return nil, err
	}
	for _, step := range []func() error{c.version, c.options, c.types, c.devices, c.machines, c.cpus} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return c.s, nil
}

type capturer struct {
	connect func() (Ask, error)
	ask     Ask
	deaths  int
	s       *Schema
	lists   map[string]int // indexes of Lists, by their text
	parents map[string]string
}

func (c *capturer) version() error {
	var v struct {
		QEMU    struct{ Major, Minor, Micro int }
		Package string
	}
	if err := c.ask("query-version", nil, &v); err != nil {
		return err
	}
	c.s.Version, c.s.Package = fmt.Sprintf("%d.%d.%d", v.QEMU.Major, v.QEMU.Minor, v.QEMU.Micro), v.Package
	var target struct{ Arch string }
	if err := c.ask("query-target", nil, &target); err != nil {
		return err
	}
	c.s.Arch = target.Arch
	return nil
}

// flagLine is the line of -help that an option begins: its name, and others after " or " or "/".
var flagLine = regexp.MustCompile(`^-{1,2}([A-Za-z0-9][A-Za-z0-9_-]*)(?:(?: or |/)-([A-Za-z0-9][A-Za-z0-9_-]*))?`)

func flags(help string) []string {
	found := map[string]bool{}
	for line := range strings.Lines(help) {
		if m := flagLine.FindStringSubmatch(line); m != nil {
			found[m[1]] = true
			if m[2] != "" {
				found[m[2]] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func (c *capturer) options() error {
	var all []struct {
		Option     string
		Parameters []struct{ Name, Type string }
	}
	if err := c.ask("query-command-line-options", nil, &all); err != nil {
		return err
	}
	for _, o := range all {
		if o.Option == "" || len(o.Parameters) == 0 || len(c.s.Options) > maxTypes {
			continue
		}
		parameters := map[string]string{}
		for _, p := range o.Parameters {
			parameters[p.Name] = p.Type
		}
		c.s.Options[flagOf(o.Option)] = parameters
	}
	return nil
}

// flagOf returns the flag of an option: three have other names in QEMU's lists (softmmu/vl.c).
func flagOf(option string) string {
	if option == "memory" {
		return "m"
	}
	return strings.TrimSuffix(option, "-opts") // boot-opts, smp-opts
}

// listed is a property as QEMU lists it.
type listed struct{ Name, Type, Description string }

// hidden are types of properties that nobody sets: parts of a device, its wires, and what it only reports.
var hidden = regexp.MustCompile(`^(child<.*|link<(irq|memory-region)>|GuestPanicInformation|X86CPUFeatureWordInfo|guest statistics)$`)

// values are those that a description names, such as "on/off/auto" or "Error handling policy (report/ignore)".
var values = regexp.MustCompile(`(?:^|[ (])([A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)+)\)?$`)

// properties asks for a device's or object's properties, and returns the index of their list. A type that cannot be
// asked has an unknown list.
func (c *capturer) properties(command, typename string) (int, error) {
	var all []listed
	switch err := c.ask(command, map[string]string{"typename": typename}, &all); {
	case errors.Is(err, ErrRefused):
		return Unknown, nil
	case errors.Is(err, ErrEnded) && c.deaths < maxDeaths:
		c.deaths++
		c.ask, err = c.connect()
		return Unknown, err
	case err != nil:
		return Unknown, err
	case len(all) > maxProperties:
		return Unknown, fmt.Errorf("QEMU says that %s has %d properties, more than %d", typename, len(all), maxProperties)
	}
	list := map[string]string{}
	for _, p := range all {
		if hidden.MatchString(p.Type) {
			continue
		}
		list[p.Name] = p.Type
		// Types in lower case are numbers, texts, truths and links.
		if m := values.FindStringSubmatch(p.Description); m != nil && p.Type != "" && p.Type[:1] != strings.ToLower(p.Type[:1]) {
			c.s.Enums[p.Type] = strings.Split(m[1], "/")
		}
	}
	return c.list(list), nil
}

// list returns the index of a list of properties.
func (c *capturer) list(list map[string]string) int {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(list)) {
		fmt.Fprintf(&text, "%s %s\n", name, list[name])
	}
	index, ok := c.lists[text.String()]
	if !ok {
		index = len(c.s.Lists)
		c.lists[text.String()] = index
		c.s.Lists = append(c.s.Lists, list)
	}
	return index
}

// isA reports whether a type of QEMU's object model is another, or is derived from it.
func (c *capturer) isA(name, ancestor string) bool {
	for range 32 {
		if name == ancestor {
			return true
		}
		name = c.parents[name]
	}
	return false
}

// helpLine is a line of "device_add help".
var helpLine = regexp.MustCompile(`^name "([^"]+)"(?:, bus ([^,\r\n]+))?(?:, alias "([^"]+)")?`)

func (c *capturer) devices() error {
	var all []struct {
		Name, Parent string
		Abstract     bool
	}
	if err := c.ask("qom-list-types", map[string]bool{"abstract": true}, &all); err != nil {
		return err
	}
	if len(all) > maxDevices {
		return fmt.Errorf("QEMU says that it has %d types of objects, more than %d", len(all), maxDevices)
	}
	c.parents = map[string]string{}
	for _, t := range all {
		c.parents[t.Name] = t.Parent
	}
	var help string
	if err := c.ask("human-monitor-command", map[string]string{"command-line": "device_add help"}, &help); err != nil {
		return err
	}
	creatable := map[string]Device{}
	for line := range strings.Lines(help) {
		if m := helpLine.FindStringSubmatch(line); m != nil {
			creatable[m[1]] = Device{Bus: m[2], Alias: m[3], Creatable: true}
		}
	}
	slices.SortFunc(all, func(a, b struct {
		Name, Parent string
		Abstract     bool
	}) int {
		return strings.Compare(a.Name, b.Name)
	})
	for _, t := range all {
		if !c.isA(t.Name, "device") {
			continue
		}
		if t.Abstract {
			c.s.Abstract = append(c.s.Abstract, t.Name)
			continue
		}
		d := creatable[t.Name]
		var err error
		if d.List, err = c.properties("device-list-properties", t.Name); err != nil {
			return fmt.Errorf("ask for the properties of %s: %w", t.Name, err)
		}
		c.s.Devices[t.Name] = d
	}
	return c.accelerators()
}

func (c *capturer) accelerators() (err error) {
	for _, name := range slices.Sorted(maps.Keys(c.parents)) {
		short, ok := strings.CutSuffix(name, "-accel")
		if !ok || !c.isA(name, "accel") {
			continue
		}
		if c.s.Accelerators[short], err = c.properties("qom-list-properties", name); err != nil {
			return fmt.Errorf("ask for the properties of %s: %w", name, err)
		}
	}
	return nil
}

// family is what machine types have in common before their version.
var family = regexp.MustCompile(`^(pc-q35|pc-i440fx|virt)-[0-9]`)

// machines asks for the properties of the machine types of PCs and of the board virt only: QEMU makes the machine to
// answer, and microvm aborts outside of a machine of its own (acpi_setup_microvm, 7.2). All versions of a family have
// the same properties.
func (c *capturer) machines() error {
	var all []struct {
		Name, Alias string
		Deprecated  bool
	}
	if err := c.ask("query-machines", nil, &all); err != nil {
		return err
	}
	if len(all) > maxTypes {
		return fmt.Errorf("QEMU says that it has %d machine types, more than %d", len(all), maxTypes)
	}
	lists := map[string]int{}
	for _, m := range all {
		machine := Machine{Name: m.Name, Deprecated: m.Deprecated, List: Unknown}
		if f := family.FindStringSubmatch(m.Name); f != nil {
			if _, asked := lists[f[1]]; !asked {
				list, err := c.properties("qom-list-properties", m.Name+"-machine")
				if err != nil {
					return fmt.Errorf("ask for the properties of machine type %s: %w", m.Name, err)
				}
				lists[f[1]] = list
			}
			machine.List = lists[f[1]]
		}
		c.s.Machines[m.Name] = machine
		if m.Alias != "" {
			c.s.Machines[m.Alias] = machine
		}
	}
	return nil
}

func (c *capturer) cpus() error {
	var all []struct {
		Name, Typename string
		Deprecated     bool
	}
	if err := c.ask("query-cpu-definitions", nil, &all); err != nil {
		return err
	}
	for _, m := range all {
		list := Unknown
		if d, ok := c.s.Devices[m.Typename]; ok {
			list = d.List
		}
		c.s.CPUs[m.Name] = CPU{List: list, Deprecated: m.Deprecated}
	}
	return nil
}
