package check

import (
	"iter"
	"maps"
	"regexp"
	"strings"
)

// kind is what an id is of. Ids of different kinds do not collide.
type kind string

const (
	devices   kind = "device"
	objects   kind = "object"
	chardevs  kind = "chardev"
	netdevs   kind = "netdev"
	nodes     kind = "block node" // and drives: -device takes both by the property "drive"
	audiodevs kind = "audiodev"
	fsdevs    kind = "fsdev"
	tpmdevs   kind = "tpmdev"
	fdsets    kind = "fdset"
	buses     kind = "bus"
)

// use is a property that refers to an id.
type use struct {
	kind         kind
	property, id string
	label        string
	place        int
}

// openAll gives up on ids: there may be any.
func (c *checker) openAll() {
	for _, k := range []kind{devices, objects, chardevs, netdevs, nodes, audiodevs, fsdevs, tpmdevs, fdsets, buses} {
		c.open[k] = true
	}
}

// unreadable complains of a value of the wrong form. It may have been anything.
func (c *checker) unreadable(err error) {
	c.problem("read the value: %v", err)
	c.openAll()
}

// define keeps an id. An id may be there once.
func (c *checker) define(k kind, id string) {
	if c.defined[k] == nil {
		c.defined[k] = map[string]bool{}
	}
	if c.defined[k][id] {
		c.problem("the id %q is taken: another %s has it", shorten(id), k)
	}
	c.defined[k][id] = true
}

func (c *checker) refers(k kind, property, id string) {
	c.uses = append(c.uses, use{k, property, id, c.label, c.place})
}

// fdset keeps that a file is one of -add-fd's.
func (c *checker) fdset(filename string) {
	if set, ok := strings.CutPrefix(filename, "/dev/fdset/"); ok {
		c.refers(fdsets, filename, set)
	}
}

// maxIDs is among how many ids a near one is searched. A machine has fewer.
const maxIDs = 10_000

// references complains of ids that nothing has.
func (c *checker) references() {
	for _, u := range c.uses {
		if c.ended {
			return
		}
		c.label, c.place = u.label, u.place
		if c.open[u.kind] || c.defined[u.kind][u.id] || u.kind == buses && c.hasBus(u.id) {
			continue
		}
		if u.kind == fdsets {
			c.problem("there is no -add-fd for %s", shorten(u.property))
			continue
		}
		names := c.defined[u.kind]
		if u.kind == buses {
			names = c.defined[devices]
		}
		known := maps.Keys(names)
		switch {
		case len(names) > maxIDs:
			known = func(func(string) bool) {}
		case u.kind == buses:
			known = both(known, "pcie.0")
		}
		c.problem("%q is %q, and no %s has this id%s", u.property, shorten(u.id), u.kind, c.meant(u.id, known))
	}
}

// both yields names, and then more.
func both(names iter.Seq[string], more ...string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for name := range names {
			if !yield(name) {
				return
			}
		}
		for _, name := range more {
			if !yield(name) {
				return
			}
		}
	}
}

// numbered is the name of a bus that QEMU names itself (hw/core/bus.c, qbus_init_internal): after its device's id, or
// after its type.
var numbered = regexp.MustCompile(`^(.+)\.[0-9]+$`)

// isVirt reports whether a machine type is one of the board virt.
func isVirt(machine string) bool { return machine == "virt" || strings.HasPrefix(machine, "virt-") }

// hasBus reports whether there may be a bus of the name.
func (c *checker) hasBus(name string) bool {
	if strings.Contains(name, "/") || c.defined[devices][name] {
		return true
	}
	m := numbered.FindStringSubmatch(name)
	if m == nil {
		return name == "main-system-bus" || name == "sysbus"
	}
	if c.defined[devices][m[1]] {
		return true
	}
	// A QEMU for ARM has no default machine, and its board virt has PCI Express only.
	express := strings.Contains(c.machine, "q35") || isARM(c.schema) && isVirt(c.machine)
	i440fx := strings.HasPrefix(c.machine, "pc-i440fx") || c.machine == "pc" || c.machine == "" && !isARM(c.schema)
	switch m[1] {
	case "pcie":
		return name == "pcie.0" && !i440fx || c.unnamed
	case "pci":
		return name == "pci.0" && !express || c.unnamed
	}
	// QEMU's own, such as ide.2, isa.0, usb-bus.0, and those of devices without an id.
	for _, own := range []string{"ide", "isa", "i2c", "smbus", "usb-bus", "scsi", "virtio-bus", "virtio-serial-bus", "hda", "floppy-bus", "sd-bus", "ipmi", "nvme-bus", "spi", "ccid-bus", "virtio-mmio-bus", "SSI", "ssi"} {
		if m[1] == own {
			return true
		}
	}
	return false
}
