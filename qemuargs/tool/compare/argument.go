// Package compare tells two QEMU command lines apart: which device changes, and whether the
// guest sees the change. It is pure.
package compare

import (
	"encoding/json"
	"regexp"
	"strings"
)

// Argument is one argument as text, such as "-m size=128M".
type Argument string

func (a Argument) flag() string {
	flag, _, _ := strings.Cut(string(a), " ")
	return flag
}

func (a Argument) value() string {
	_, value, _ := strings.Cut(string(a), " ")
	return value
}

// Part names the part of the machine that the argument is of: a device by its id, such as
// "disk root" or "nic default", or what the whole machine has, such as "cpu".
func (a Argument) Part() string {
	switch flag := a.flag(); flag {
	case "-device", "-blockdev", "-netdev", "-object", "-chardev", "-add-fd", "-vnc":
		return a.owner()
	case "-kernel", "-initrd", "-append":
		return "kernel"
	case "-m":
		return "memory"
	case "-smp":
		return "cpu"
	case "-accel":
		return "accelerator"
	case "-mon":
		return "monitor"
	case "-display":
		return "graphics"
	default:
		return strings.TrimPrefix(flag, "-")
	}
}

// named are the names of the devices that a machine has once at most, by their ids.
var named = map[string]string{
	"video0": "graphics", "balloon0": "balloon", "rng0": "rng", "objrng0": "rng", "watchdog0": "watchdog", "usb": "usb controller",
	"scsi0": "scsi controller", "serial0": "serial", "agent0": "agent", "virtio-serial0": "agent", "qmp": "monitor", "monitor0": "monitor", "pc.ram": "memory", "mach-virt.ram": "memory",
}

// kinds are the kinds of devices of which a machine has several, by what their ids begin with.
var kinds = []struct{ prefix, kind string }{
	{"disk-", "disk"}, {"net-", "nic"}, {"nic-", "nic"}, {"input-", "input"}, {"pci.", "pci port"}, {"ahci", "sata controller"}, {"cpu-", "cpu"}, {"mem-", "memory"},
}

// owner names the device whose id, or whose backend's id, the argument has.
func (a Argument) owner() string {
	id := a.id()
	if name, ok := named[id]; ok {
		return name
	}
	for _, k := range kinds {
		if rest, ok := strings.CutPrefix(id, k.prefix); ok {
			// A disk has several block nodes: disk-root, disk-root.file, disk-root.base.
			rest, _, _ = strings.Cut(rest, ".")
			return strings.TrimSpace(k.kind + " " + rest)
		}
	}
	if id != "" {
		return id
	}
	return strings.TrimPrefix(a.flag(), "-")
}

func (a Argument) id() string {
	value := a.value()
	if a.flag() == "-vnc" {
		return "video0"
	}
	if properties, ok := a.properties(); ok {
		for _, key := range []string{"id", "node-name"} {
			if id, ok := properties[key].(string); ok {
				return id
			}
		}
		return ""
	}
	for option := range strings.SplitSeq(value, ",") {
		if id, ok := strings.CutPrefix(option, "id="); ok {
			return id
		}
	}
	return ""
}

func (a Argument) properties() (map[string]any, bool) {
	var properties map[string]any
	ok := strings.HasPrefix(a.value(), "{") && json.Unmarshal([]byte(a.value()), &properties) == nil
	return properties, ok
}

// descriptors are where an argument has the numbers of inherited files, by the flag. The numbers
// change whenever a device before them comes or goes, and mean nothing for the devices. Other
// arguments have no such numbers: in -append, fd=2 is the guest's.
var descriptors = map[string]*regexp.Regexp{
	"-add-fd":   regexp.MustCompile(`[ ,](fd|set)=\d+`),
	"-chardev":  regexp.MustCompile(`,fd=\d+|"fd":"\d+"`),
	"-netdev":   regexp.MustCompile(`,(?:vhost)?fds?=[0-9:]+|"(?:vhost)?fds?":"[0-9:]+"|"type":"fd","str":"\d+"`),
	"-blockdev": regexp.MustCompile(`"filename":"/dev/fdset/\d+"`),
}

// same reports whether two arguments are equal but for the numbers of inherited files.
func same(a, b Argument) bool { return a == b || a.Unnumbered() == b.Unnumbered() }

// Unnumbered returns the argument with N for each number of an inherited file.
func (a Argument) Unnumbered() string {
	numbers, ok := descriptors[a.flag()]
	if !ok {
		return string(a)
	}
	return numbers.ReplaceAllStringFunc(string(a), func(s string) string { return digits.ReplaceAllString(s, "N") })
}

var digits = regexp.MustCompile(`\d+`)
