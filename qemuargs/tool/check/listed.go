package check

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kubeqemu/kubeqemu/qemuargs/tool/schema"
)

// rule is what QEMU does not say of an option by itself, but its source does.
type rule struct {
	implied string              // the key that the first part may stand for
	values  map[string][]string // those of a parameter
	kind    kind                // what the option's id is of
	more    []string            // parameters that QEMU takes and does not list
}

// ruleOf returns the rule of an option (QEMU, softmmu/vl.c and system/vl.c unless another file is named).
func ruleOf(flag string) rule {
	permit := []string{"allow", "deny"}
	switch flag {
	case "chardev": // chardev/char.c
		return rule{implied: "backend", kind: chardevs, more: []string{"id"}}
	case "mon":
		return rule{implied: "chardev", values: map[string][]string{"mode": {"readline", "control"}}, more: []string{"id"}}
	case "rtc": // softmmu/rtc.c
		return rule{values: map[string][]string{"clock": {"host", "rt", "vm"}, "driftfix": {"slew", "none"}}}
	case "sandbox": // softmmu/qemu-seccomp.c
		return rule{implied: "enable", values: map[string][]string{"obsolete": permit, "spawn": permit, "resourcecontrol": permit, "elevateprivileges": {"allow", "deny", "children"}}}
	case "smp":
		return rule{implied: "cpus"}
	case "m":
		return rule{implied: "size"}
	case "boot":
		return rule{implied: "order"}
	case "name":
		return rule{implied: "guest"}
	case "vnc": // ui/vnc.c
		return rule{implied: "vnc", more: []string{"id"}}
	case "drive": // blockdev.c, block.c
		return rule{values: map[string][]string{
			"if":     {"none", "ide", "scsi", "floppy", "pflash", "mtd", "sd", "virtio", "xen"},
			"media":  {"disk", "cdrom"},
			"cache":  {"none", "off", "writeback", "writethrough", "directsync", "unsafe"},
			"aio":    {"threads", "native", "io_uring"},
			"werror": {"report", "ignore", "enospc", "stop"}, "rerror": {"report", "ignore", "stop"},
			"discard": {"ignore", "off", "unmap", "on"}, "detect-zeroes": {"off", "on", "unmap"}}}
	case "fsdev": // fsdev/qemu-fsdev.c
		return rule{implied: "fsdriver", kind: fsdevs, more: []string{"id"}}
	case "virtfs":
		return rule{implied: "fsdriver", more: []string{"id"}}
	case "icount":
		return rule{implied: "shift"}
	case "fw_cfg":
		return rule{implied: "name"}
	case "option-rom":
		return rule{implied: "romfile"}
	case "trace":
		return rule{implied: "enable"}
	case "overcommit":
		return rule{values: map[string][]string{"mem-lock": {"on", "off", "on-fault"}}}
	}
	return rule{}
}

// option checks an option whose parameters QEMU lists.
func (c *checker) option(flag, value string) {
	switch flag {
	case "readconfig": // a file that may hold anything
		c.openAll()
	case "serial", "parallel", "monitor", "qmp", "qmp-pretty", "debugcon", "gdb":
		c.character(flag, value)
	case "tpmdev":
		c.backend(flag, value, "type", tpmdevs)
	case "nic", "net":
		c.open[netdevs] = true
	case "hda", "hdb", "hdc", "hdd", "cdrom", "fda", "fdb", "sd", "pflash", "mtdblock":
		c.open[nodes] = true
	case "spice":
		c.open[chardevs] = true
	case "audio":
		c.audio(value)
	}
	list, ok := c.schema.Options[flag]
	if !ok {
		return
	}
	r := ruleOf(flag)
	all := pairs(value, r.implied)
	for _, p := range all {
		if p.key == "id" && r.kind != "" {
			c.label = fmt.Sprintf("-%s %s", flag, printable(shorten(p.value)))
			c.define(r.kind, p.value)
		}
	}
	if flag == "chardev" && !c.characterBackend(all) {
		return
	}
	if flag == "mon" && compareVersions(c.schema.Version, "11.1") >= 0 {
		c.warn(`it is deprecated; use -object monitor-qmp or monitor-hmp`) // 11.1's own warning
	}
	for _, p := range all {
		c.parameter(flag, p, list, r)
	}
	if flag == "smp" {
		c.topology(all)
	}
}

// topology complains of CPUs that the sockets, cores and threads do not make (hw/core/machine-smp.c). What is not given
// QEMU computes.
func (c *checker) topology(all []pair) {
	given := map[string]uint64{}
	for _, p := range all {
		if n, err := strconv.ParseUint(p.value, 0, 16); err == nil && n > 0 {
			given[p.key] = n
		}
	}
	total, ok := given["maxcpus"]
	if !ok {
		total = given["cpus"]
	}
	product, text := uint64(1), []string{}
	for _, level := range []string{"drawers", "books", "sockets", "dies", "clusters", "modules", "cores", "threads"} {
		if n := given[level]; n > 0 && product < 1<<32 {
			product *= n
			text = append(text, fmt.Sprintf("%s=%d", level, n))
		}
	}
	if given["sockets"]*given["cores"]*given["threads"] > 0 && total > 0 && product != total {
		c.problem("%s multiply to %d, and the number of CPUs is %d", strings.Join(text, ", "), product, total)
	}
}

// date is what -rtc base= takes.
var date = regexp.MustCompile(`^[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(T[0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2})?$`)

// parameter checks one parameter of an option.
func (c *checker) parameter(flag string, p pair, list map[string]string, r rule) {
	kind, ok := list[p.key]
	if p.bare && !ok { // "nowait" (util/qemu-option.c)
		kind, ok = list[strings.TrimPrefix(p.key, "no")]
	}
	if slices.Contains(r.more, p.key) {
		return
	}
	if !ok {
		has := func(s *schema.Schema) bool { return s.Options[flag][p.key] != "" }
		c.problem("there is no parameter %q%s", shorten(p.key), c.hint(p.key, both(maps.Keys(list), r.more...), has))
		return
	}
	if p.bare {
		return
	}
	complaint := ""
	switch values := r.values[p.key]; {
	case flag == "overcommit" && kind == "boolean": // on-fault is of 10.0
		complaint = truth(word(p.value))
	case values != nil:
		complaint = oneOf(word(p.value), values)
	case flag == "rtc" && p.key == "base" && p.value != "utc" && p.value != "localtime" && !date.MatchString(p.value):
		complaint = "want utc, localtime, or a date such as 2006-06-17T16:01:21"
	case flag == "boot" && (p.key == "order" || p.key == "once"):
		complaint = c.bootOrder(p.value)
	case kind == "boolean":
		complaint = truth(word(p.value))
	case kind == "number":
		complaint = integer(word(p.value), "uint64")
	case kind == "size":
		complaint = size(p.value)
	}
	if complaint != "" {
		c.problem("%q is %s; %s", p.key, shown(p.value), complaint)
	}
	if p.key == "chardev" && flag == "mon" {
		c.refers(chardevs, p.key, p.value)
	}
	if flag == "add-fd" && p.key == "set" {
		c.declare(fdsets, p.value)
	}
}

// bootOrder complains of what is no list of drive letters (validate_bootdevices in bootdevice.c). A PC takes three at
// most, and five letters (set_boot_dev in hw/i386/pc.c).
func (c *checker) bootOrder(letters string) string {
	known, most := "abcdn", 3
	if pc := c.machine == "" && !isARM(c.schema) || c.machine == "isapc" || strings.HasPrefix(c.machine, "pc") || strings.HasPrefix(c.machine, "q35"); !pc {
		known, most = "abcdefghijklmnop", 16
	}
	for i, letter := range letters {
		if !strings.ContainsRune(known, letter) {
			return fmt.Sprintf("want letters of %s, such as cd: floppies (a, b), the first hard disk (c), a CD-ROM (d), the network (n)", known)
		}
		if strings.ContainsRune(letters[:i], letter) {
			return fmt.Sprintf("the letter %c is there twice", letter)
		}
	}
	if len(letters) > most {
		return fmt.Sprintf("want %d letters at most", most)
	}
	return ""
}

// declare keeps an id that may be there twice: a set has many files.
func (c *checker) declare(k kind, id string) {
	if !c.defined[k][id] {
		c.define(k, id)
	}
}

// characterBackend complains of a chardev whose backend there is not.
func (c *checker) characterBackend(all []pair) bool {
	backend := ""
	for _, p := range all {
		if p.key == "backend" {
			backend = p.value
		}
	}
	values := backends(c.schema)
	if backend == "" || len(values) == 0 || slices.Contains(values, backend) {
		return true
	}
	has := func(s *schema.Schema) bool { return slices.Contains(backends(s), backend) }
	c.problem("QEMU %s has no chardev %q%s", c.schema.Release(), shorten(backend), c.hint(backend, slices.Values(values), has))
	return false
}

// backends returns those of -chardev: of QAPI's ChardevBackend, and two older names (chardev/char-serial.c,
// char-parallel.c).
func backends(s *schema.Schema) []string {
	for _, m := range s.Types[s.Commands["chardev-add"]].Members {
		if m.Name == "backend" {
			return append(slices.Collect(maps.Keys(s.Types[m.Type].Variants)), "tty", "parport")
		}
	}
	return nil
}

// character checks -serial and its like, which name a chardev or make one.
func (c *checker) character(flag, value string) {
	if id, ok := strings.CutPrefix(value, "chardev:"); ok {
		c.refers(chardevs, "chardev", id)
		return
	}
	c.open[chardevs] = true // QEMU names the one that it makes
}

// audio keeps the id of -audio, which makes an audiodev. Without an id QEMU names it.
func (c *checker) audio(value string) {
	if !strings.Contains(value, "id=") {
		c.open[audiodevs] = true
		return
	}
	c.backend("audio", value, "driver", audiodevs)
}

// backend keeps an option's id and its chardev.
func (c *checker) backend(flag, value, implied string, k kind) {
	for _, p := range pairs(value, implied) {
		switch p.key {
		case "id":
			c.label = fmt.Sprintf("-%s %s", flag, printable(shorten(p.value)))
			c.define(k, p.value)
		case "chardev":
			c.refers(chardevs, p.key, p.value)
		}
	}
}

// drive checks -drive. It takes all options of the image's format and protocol too.
func (c *checker) drive(value string) {
	list := c.schema.Options["drive"]
	id := ""
	for _, p := range pairs(value, "") {
		switch p.key {
		case "id":
			id = p.value
			c.label = "-drive " + printable(shorten(id))
			c.define(nodes, id)
		case "node-name":
			c.define(nodes, p.value)
		case "file", "file.filename":
			c.fdset(p.value)
		}
		p.key = renamed(p.key)
		_, listed := list[p.key]
		if values := ruleOf("drive").values[p.key]; values != nil && !listed { // QEMU does not list cache
			if complaint := oneOf(word(p.value), values); complaint != "" {
				c.problem("%q is %s; %s", p.key, shown(p.value), complaint)
			}
		} else if listed {
			c.parameter("drive", p, list, ruleOf("drive"))
		} else if first, _, _ := strings.Cut(p.key, "."); len(list) > 0 && p.key != "id" && !anyMember(c.schema, first) {
			c.problem("there is no parameter %q%s", shorten(p.key), c.hint(p.key, maps.Keys(list), func(s *schema.Schema) bool { return s.Options["drive"][p.key] != "" }))
		}
	}
	if id == "" {
		c.open[nodes] = true // QEMU makes one, such as virtio0
	}
}

// renamed returns the name of a parameter of -drive that has an older name too (blockdev.c, drive_new).
func renamed(name string) string {
	switch name {
	case "readonly":
		return "read-only"
	case "group", "iops_size":
		return "throttling." + strings.ReplaceAll(name, "_", "-")
	}
	parts := strings.Split(name, "_")
	if parts[0] != "iops" && parts[0] != "bps" {
		return name
	}
	now, rest := "throttling."+parts[0], parts[1:]
	switch {
	case len(rest) > 0 && rest[0] == "rd":
		now, rest = now+"-read", rest[1:]
	case len(rest) > 0 && rest[0] == "wr":
		now, rest = now+"-write", rest[1:]
	default:
		now += "-total"
	}
	switch {
	case len(rest) == 0:
		return now
	case len(rest) == 1 && rest[0] == "max":
		return now + "-max"
	}
	return name
}

// anyMember reports whether any type of QAPI that block nodes have has a member of the name. Names of older forms are
// accepted in both spellings.
func anyMember(s *schema.Schema, name string) bool {
	for _, t := range s.Types {
		for _, m := range t.Members {
			if m.Name == name || m.Name == strings.ReplaceAll(name, "_", "-") {
				return true
			}
		}
	}
	// if= and serial of old releases, and what block/*.c takes beside QAPI.
	return slices.Contains([]string{"throttling", "cache", "file", "backing", "filename", "host", "port", "path", "export", "addr", "cyls", "heads", "secs", "trans"}, name)
}

// smbios checks -smbios; QEMU lists nothing of it (hw/smbios/smbios.c, qemu_smbios_type*_opts).
func (c *checker) smbios(value string) {
	all := pairs(value, "")
	kind := ""
	for _, p := range all {
		if p.key == "type" {
			kind = p.value
		}
		if p.key == "file" {
			return
		}
	}
	known, ok := map[string]string{
		"0":  "vendor version date release uefi vm",
		"1":  "manufacturer product version serial uuid sku family",
		"2":  "manufacturer product version serial asset location",
		"3":  "manufacturer version serial asset sku",
		"4":  "sock_pfx manufacturer version serial asset part max-speed current-speed processor-id processor-family",
		"17": "loc_pfx bank manufacturer serial asset part speed",
	}[kind]
	if !ok {
		return
	}
	names := append(strings.Fields(known), "type")
	for _, p := range all {
		if !slices.Contains(names, p.key) {
			c.problem("type=%s has no parameter %q%s", kind, shorten(p.key), c.hint(p.key, slices.Values(names), func(*schema.Schema) bool { return false }))
		}
	}
}
