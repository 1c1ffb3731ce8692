package check

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kubeqemu/kubeqemu/qemuargs/tool/schema"
)

// device checks -device.
func (c *checker) device(value string) {
	properties := map[string]any{}
	if isJSON(value) {
		var err error
		if properties, err = object(value); err != nil {
			c.unreadable(err)
			return
		}
	} else {
		for _, p := range pairs(value, "driver") {
			if p.bare { // an old form of a truth, which QEMU warns of (util/qemu-option.c)
				c.short(p, properties)
				continue
			}
			properties[p.key] = word(p.value)
		}
	}
	driver, id := spelled(properties["driver"]), spelled(properties["id"])
	c.label = "-device " + printable(shorten(driver))
	if id != "" {
		c.label = "-device " + printable(shorten(id))
		c.define(devices, id)
	}
	if driver == "" {
		c.problem(`"driver" is missing`)
		return
	}
	if bus := spelled(properties["bus"]); bus != "" {
		c.refers(buses, "bus", bus)
	}
	full, d, ok := c.schema.Device(driver)
	if !ok || !d.Creatable && !slices.Contains(cpuTypes(c.schema), full) {
		c.noDevice(driver, ok || slices.Contains(c.schema.Abstract, driver))
		return
	}
	c.unnamed = c.unnamed || id == "" && bridge.MatchString(full)
	c.properties(full, c.schema.List(d.List), properties, "driver", "id", "bus")
}

// bridge is the name of a device that is a PCI bridge.
var bridge = regexp.MustCompile(`bridge|port|^pxb|^ioh3420$|^x3130|^xio3130|^i82801b11|^cxl-`)

// cpuTypes returns the types of hotplugged CPUs, which "device_add help" lists as well.
func cpuTypes(s *schema.Schema) []string {
	var all []string
	for name := range s.CPUs {
		all = append(all, name+"-"+cpuTarget(s)+"-cpu")
	}
	return all
}

// short keeps a truth of the form "name" or "noname". Which of the two it is the device's properties tell.
func (c *checker) short(p pair, properties map[string]any) {
	name, _, _ := strings.Cut(p.key, ".")
	_, d, _ := c.schema.Device(spelled(properties["driver"]))
	list := c.schema.List(d.List)
	if on, ok := strings.CutPrefix(name, "no"); ok && list[name] == "" && list[on] != "" {
		properties[on] = word("off")
		return
	}
	properties[p.key] = word("on")
}

// noDevice complains of a device that -device does not take. internal says that QEMU has it for itself.
func (c *checker) noDevice(driver string, internal bool) {
	if internal {
		c.problem("QEMU makes %q itself, and -device does not take it", driver)
		return
	}
	var known []string
	for name, d := range c.schema.Devices {
		if d.Creatable {
			known = append(known, name)
		}
		if d.Alias != "" {
			known = append(known, d.Alias)
		}
	}
	has := func(s *schema.Schema) bool { _, d, ok := s.Device(driver); return ok && d.Creatable }
	c.problem("QEMU %s has no device %q%s", c.schema.Release(), shorten(driver), c.hint(driver, slices.Values(known), has))
}

// properties checks the properties of a device, a machine or an accelerator. list is nil where nothing is known of
// them.
func (c *checker) properties(subject string, list map[string]string, properties map[string]any, but ...string) {
	if list == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if c.ended {
			return
		}
		if slices.Contains(but, name) {
			continue
		}
		kind, ok := list[name]
		first, _, dotted := strings.Cut(name, ".")
		switch {
		case ok:
			c.property(name, kind, properties[name])
		case dotted && list[first] != "", strings.Contains(name, "["), strings.HasPrefix(name, "len-"):
			// Part of a list or an object (hw/core/qdev-properties.c, qom/object_interfaces.c).
		default:
			has := func(s *schema.Schema) bool {
				_, d, _ := s.Device(subject)
				_, ok := s.List(d.List)[name]
				return ok && d != schema.Device{}
			}
			c.problem("%s has no property %q%s", subject, shorten(name), c.hint(name, maps.Keys(list), has))
		}
	}
}

// property checks a value against the type that QEMU's object model names.
func (c *checker) property(name, kind string, value any) {
	complaint := ""
	switch values := c.schema.Enums[kind]; {
	case name == "addr" && (kind == "int32" || kind == "str"): // a text in QEMU 7.2 too, in spite of its type there
		complaint = slot(value)
	case name == "label-size" && kind == "int": // of nvdimm, whose setter reads a size (hw/mem/nvdimm.c)
		complaint = integer(value, "size")
	case kind == "bool":
		complaint = truth(value)
	case values != nil:
		complaint = oneOf(value, values)
	case kind == "str" || kind == "string" || strings.HasPrefix(kind, "link<"):
		complaint = text(value)
		c.points(name, kind, spelled(value))
	case kind == "size", kind == "int", isNumber(kind):
		complaint = integer(value, kind)
	case kind == "IOThreadVirtQueueMappingList":
		c.mapping(name, value)
	}
	if complaint != "" {
		c.problem("%q is %s; %s", name, shown(value), complaint)
	}
}

// slot complains of a value that is no PCI slot, 0 to 1f, perhaps with a function, 0 to 7
// (hw/core/qdev-properties-system.c, set_pci_devfn). A number is slot * 8 + function.
func slot(value any) string {
	if _, isNumber := value.(json.Number); isNumber {
		return integer(value, "uint8")
	}
	device, function, hasFunction := strings.Cut(spelled(value), ".")
	d, err := strconv.ParseUint(strings.TrimPrefix(device, "0x"), 16, 8)
	f, functionErr := strconv.ParseUint(strings.TrimPrefix(function, "0x"), 16, 8)
	if err != nil || d > 0x1f || hasFunction && (functionErr != nil || f > 7) {
		return "want a slot from 0 to 1f, perhaps with a function from 0 to 7, such as 2.1"
	}
	return ""
}

func isNumber(kind string) bool {
	kind = strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(kind, "u"), "int"), "_t")
	return slices.Contains([]string{"8", "16", "32", "64"}, kind)
}

// points keeps what a property refers to.
func (c *checker) points(name, kind, id string) {
	if id == "" || strings.HasPrefix(id, "/") { // a path in QEMU's object model
		return
	}
	switch name {
	case "drive":
		c.refers(nodes, name, id)
	case "netdev":
		c.refers(netdevs, name, id)
	case "chardev":
		c.refers(chardevs, name, id)
	case "audiodev", "pcspk-audiodev":
		c.refers(audiodevs, name, id)
	case "tpmdev":
		c.refers(tpmdevs, name, id)
	case "fsdev":
		c.refers(fsdevs, name, id)
	case "pflash0", "pflash1":
		c.refers(nodes, name, id)
	}
	switch kind {
	case "link<iothread>", "link<memory-backend>", "link<rng-backend>", "link<cryptodev-backend>", "link<can-bus>", "link<iommufd>",
		"link<memory-backend-epc>", "link<confidential-guest-support>":
		c.refers(objects, name, id)
	}
}

// mapping keeps the threads of a device's queues.
func (c *checker) mapping(name string, value any) {
	list, ok := value.([]any)
	if _, isWord := value.(word); !ok && !isWord {
		c.problem("%q is %s; want a list", name, shown(value))
	}
	for _, element := range list {
		if entry, ok := element.(map[string]any); ok {
			if id := spelled(entry["iothread"]); id != "" {
				c.refers(objects, name, id)
			}
		}
	}
}

// global checks -global driver.property=value.
func (c *checker) global(value string) {
	var driver, property, text string
	if prefix, rest, ok := strings.Cut(value, "="); ok && !strings.Contains(prefix, ",") && strings.Contains(prefix, ".") {
		// The driver's name may have a dot: cfi.pflash01.
		at := strings.LastIndexByte(prefix, '.')
		if _, _, found := c.schema.Device(prefix[:at]); !found {
			at = strings.IndexByte(prefix, '.')
		}
		driver, property, text = prefix[:at], prefix[at+1:], rest
	} else {
		for _, p := range pairs(value, "") {
			switch p.key {
			case "driver":
				driver = p.value
			case "property":
				property = p.value
			case "value":
				text = p.value
			}
		}
	}
	c.label = printable(shorten(fmt.Sprintf("-global %s.%s", driver, property)))
	if driver == "" || property == "" {
		c.problem("want driver.property=value")
		return
	}
	if slices.Contains(c.schema.Abstract, driver) || driver == "migration" || strings.HasSuffix(driver, "-accel") || strings.HasSuffix(driver, "-machine") {
		return // of all devices that are derived from it, or of no device
	}
	d, ok := c.schema.Devices[driver] // by its name only: a -global for an alias is never used
	if !ok {
		has := func(s *schema.Schema) bool { _, ok := s.Devices[driver]; return ok }
		c.warn("QEMU %s has no device %q, and ignores it%s", c.schema.Release(), shorten(driver), c.hint(driver, maps.Keys(c.schema.Devices), has))
		return
	}
	c.properties(driver, c.schema.List(d.List), map[string]any{property: word(text)})
}
