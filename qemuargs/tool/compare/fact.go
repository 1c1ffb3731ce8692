package compare

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Fact is one thing that a command line says. Ids, names of block nodes and numbers of files
// are no facts: the program that wrote the command line chose them.
type Fact struct {
	// Argument is the flag, and with it the driver or type: "-device VGA", "-machine".
	Argument string
	// Place tells one argument from the next of the same kind: the address of a device, or the
	// device that a backend is of and what it is to the device.
	Place string
	// Property of the argument. The empty property is the argument itself.
	Property string
	// Value as text. Booleans are on and off.
	Value string
}

// Facts returns what a command line says, in its order. It reads both syntaxes of QEMU's, JSON
// and key=value.
func Facts(args []Argument) []Fact {
	g := newGraph(args)
	g.placeDevices()
	g.placeBackends()
	g.placeRest()
	var facts []Fact
	for _, n := range g.nodes {
		name := n.name()
		facts = append(facts, Fact{name, n.place, "", ""})
		for _, property := range slices.Sorted(maps.Keys(n.properties)) {
			facts = append(facts, Fact{name, n.place, property, n.properties[property]})
		}
	}
	return facts
}

// node is one argument.
type node struct {
	flag, id   string
	place      string
	placed     bool
	properties map[string]string
}

// firstKeys are the keys of the value that an option may begin with, by flag. A flag that is
// not here has a plain value, or none.
var firstKeys = map[string]string{
	"-accel": "accel", "-action": "", "-audiodev": "driver", "-blockdev": "driver", "-boot": "order", "-chardev": "backend", "-cpu": "model",
	"-device": "driver", "-display": "type", "-global": "", "-m": "size", "-machine": "type", "-mon": "chardev", "-msg": "", "-name": "guest",
	"-netdev": "type", "-numa": "type", "-object": "qom-type", "-overcommit": "", "-rtc": "base", "-sandbox": "enable", "-smbios": "", "-smp": "cpus", "-vnc": "vnc",
}

func newNode(a Argument) *node {
	n := &node{flag: a.flag(), properties: map[string]string{}}
	first, options := firstKeys[n.flag]
	if properties, ok := a.properties(); ok {
		flatten(n.properties, "", properties)
	} else if options {
		for key, value := range a.options(first) {
			n.properties[key] = value
		}
	} else if id, ok := strings.CutPrefix(a.value(), "chardev:"); ok && n.flag == "-serial" {
		n.properties["chardev"] = id
	} else if value := a.value(); value != "" {
		n.properties["value"] = value
	}
	n.properties = normal(n.flag, n.properties)
	for _, key := range []string{"id", "node-name"} {
		if id, ok := n.properties[key]; ok {
			n.id = id
			delete(n.properties, key)
		}
	}
	return n
}

// options reads key=value,key=value; first is the key of a value that begins the line.
func (a Argument) options(first string) map[string]string {
	out := map[string]string{}
	const comma = "\x00" // QEMU reads ",," as a comma within a value
	text := strings.ReplaceAll(a.value(), ",,", comma)
	for i, option := range strings.Split(text, ",") {
		key, value, ok := strings.Cut(strings.ReplaceAll(option, comma, ","), "=")
		switch {
		case !ok && i == 0 && first != "":
			key, value = first, key
		case !ok && strings.HasPrefix(key, "+"), !ok && strings.HasPrefix(key, "-"):
			key, value = key[1:], map[byte]string{'+': "on", '-': "off"}[key[0]]
		case !ok:
			value = "on"
		}
		out[key] = value
	}
	return out
}

// flatten writes an object's members as properties: {"cache":{"direct":true}} is cache.direct.
func flatten(into map[string]string, prefix string, object map[string]any) {
	for key, value := range object {
		switch v := value.(type) {
		case map[string]any:
			flatten(into, prefix+key+".", v)
		case string:
			into[prefix+key] = v
		case bool:
			into[prefix+key] = map[bool]string{true: "on", false: "off"}[v]
		case float64:
			into[prefix+key] = fmt.Sprintf("%.0f", v)
		default: // null, or a list
			text, err := json.Marshal(v)
			if err != nil {
				panic(err) // it was decoded from JSON
			}
			into[prefix+key] = string(text)
		}
	}
}

// fileNumbers are the properties that hold numbers of inherited files.
var fileNumbers = []string{"fd", "fds", "vhostfd", "vhostfds", "addr.str"}

// normal writes in one way what QEMU can read in several, and takes out what a program chooses
// for itself: numbers of files.
func normal(flag string, properties map[string]string) map[string]string {
	for key, value := range properties {
		switch {
		case flag == "-m" && key == "size" && strings.Trim(value, "0123456789") == "":
			value += "M" // MiB is the unit of a bare number
		case flag == "-add-fd", strings.HasPrefix(value, "/dev/fdset/"), slices.Contains(fileNumbers, key):
			value = digits.ReplaceAllString(value, "N")
		case value == "yes":
			value = "on"
		case value == "no":
			value = "off"
		}
		properties[key] = value
	}
	return properties
}

// kindKeys are the properties that say what kind of thing an argument makes.
var kindKeys = map[string]string{"-device": "driver", "-blockdev": "driver", "-audiodev": "driver", "-netdev": "type", "-object": "qom-type", "-chardev": "backend"}

func (n *node) name() string {
	kind := n.properties[kindKeys[n.flag]]
	if n.flag == "-global" || n.flag == "-smbios" {
		kind = n.place
	}
	return strings.TrimSpace(n.flag + " " + kind)
}

// graph are the arguments, and who refers to whom.
type graph struct {
	nodes []*node
	byID  map[string]*node // by flag and id
}

func newGraph(args []Argument) *graph {
	g := &graph{byID: map[string]*node{}}
	for _, a := range args {
		n := newNode(a)
		g.nodes = append(g.nodes, n)
		if n.id != "" {
			g.byID[n.flag+" "+n.id] = n
		}
	}
	return g
}

// seats are the properties that say where on its bus a device sits. They are facts no more:
// two devices of one place have the same.
var seats = []string{"addr", "scsi-id", "lun", "port", "nr", "index", "channel"}

// placeDevices gives each device its place.
func (g *graph) placeDevices() {
	for _, n := range g.nodes {
		if n.flag == "-device" {
			g.placeDevice(n)
		}
	}
}

func (g *graph) placeDevice(n *node) {
	if n.placed {
		return
	}
	n.placed = true // before its bus is looked for, which ends a circle
	var seat []string
	if bus, ok := n.properties["bus"]; ok {
		seat = append(seat, g.bus(bus))
	} else if n.properties["driver"] == "isa-serial" {
		seat = append(seat, "isa")
	}
	for _, key := range seats {
		if value, ok := n.properties[key]; ok && !(n.properties["driver"] == "pcie-root-port" && key == "port") {
			// A drive on channel 0 or target 0 need not say so.
			if !(value == "0" && (key == "channel" || key == "scsi-id")) {
				seat = append(seat, key+" "+value)
			}
			delete(n.properties, key)
		}
	}
	delete(n.properties, "bus")
	n.place = strings.Join(seat, ", ")
}

// bus returns the place of the device that has the bus, or the bus' name if it is the board's.
func (g *graph) bus(name string) string {
	owner, number := g.byID["-device "+name], ""
	if dot := strings.LastIndexByte(name, '.'); owner == nil && dot > 0 {
		owner, number = g.byID["-device "+name[:dot]], name[dot:]
	}
	if owner == nil {
		return name
	}
	g.placeDevice(owner)
	return "[" + owner.place + "]" + number
}

// references are the properties that name another argument, with the flag of that.
var references = map[string]string{
	"audiodev": "-audiodev", "backing": "-blockdev", "chardev": "-chardev", "drive": "-blockdev", "file": "-blockdev",
	"iothread": "-object", "memdev": "-object", "memory-backend": "-object", "netdev": "-netdev", "pflash0": "-blockdev", "pflash1": "-blockdev", "rng": "-object", "tpmdev": "-tpmdev",
}

// placeBackends gives each argument that others refer to its place by them.
func (g *graph) placeBackends() {
	for _, n := range g.nodes {
		if n.flag == "-device" || n.flag == "-machine" || n.flag == "-mon" || n.flag == "-vnc" || n.flag == "-serial" || n.properties["qom-type"] == "monitor-qmp" {
			n.placed = true
			g.placeBackendsOf(n)
		}
	}
}

func (g *graph) placeBackendsOf(n *node) {
	for _, key := range slices.Sorted(maps.Keys(references)) {
		backend := g.byID[references[key]+" "+n.properties[key]]
		if backend == nil || backend.placed {
			continue
		}
		n.properties[key] = "its own"
		backend.placed = true
		backend.place = key + " of " + n.flag + " " + n.place
		if n.flag == "-blockdev" {
			backend.place = key + " of " + n.place
		}
		g.placeBackendsOf(backend)
	}
}

// placeRest tells apart what nothing refers to, and what shares a place.
func (g *graph) placeRest() {
	taken := map[string]int{}
	for _, n := range g.nodes {
		switch {
		case n.flag == "-smbios":
			n.place = "type " + n.properties["type"]
		case n.flag == "-global":
			n.place = strings.Join(slices.Sorted(maps.Keys(n.properties)), " ")
		case !n.placed:
			n.place = n.properties[kindKeys[n.flag]]
		}
		key := n.flag + " " + n.place
		taken[key]++
		if taken[key] > 1 {
			n.place = strings.TrimSpace(fmt.Sprintf("%s (%d)", n.place, taken[key]))
		}
	}
}
