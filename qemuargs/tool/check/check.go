// Package check holds QEMU's arguments against what a QEMU takes (qemuargs/tool/schema), without any QEMU. It is pure.
// What a schema does not tell is passed over: the package refuses no argument that QEMU might take.
package check

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/kubeqemu/kubeqemu/qemuargs/tool/schema"
)

// Problem is what is wrong with one argument.
type Problem struct {
	Argument string // such as "-device disk-root"
	Text     string
	Warning  bool // QEMU takes the argument, and means to take it no more
}

// String returns the problem on one line.
func (p Problem) String() string {
	if p.Warning {
		return p.Argument + ": warning: " + p.Text
	}
	return p.Argument + ": " + p.Text
}

// MaxProblems bounds the errors that are reported for one QEMU, and the warnings as well. The check ends at
// the next error, and says so in one more problem. One more warning tells how many warnings are left out.
const MaxProblems = 200

// maxNear is how many problems name a near name: each search compares all names.
const maxNear = 20

// Arguments checks the arguments of one QEMU, without the program's name. others are the schemas of other releases;
// they tell what is new and what is gone.
func Arguments(args []string, s *schema.Schema, others ...*schema.Schema) []Problem {
	c := newChecker(s, others)
	for i := 0; i < len(args) && !c.ended; {
		i += c.argument(args[i:])
	}
	c.references()
	slices.SortStableFunc(c.found, func(a, b placed) int { return cmp.Compare(a.place, b.place) })
	var problems []Problem
	for _, f := range c.found {
		problems = append(problems, f.Problem)
	}
	if c.ended {
		problems = append(problems, Problem{Argument: "arguments", Text: fmt.Sprintf("the check ended after %d errors", MaxProblems)})
	}
	if c.unshown > 0 {
		problems = append(problems, Problem{Argument: "arguments", Text: fmt.Sprintf("%d more warnings are not shown", c.unshown), Warning: true})
	}
	return problems
}

// placed is a problem and the number of its argument.
type placed struct {
	Problem
	place int
}

// checker checks one command line.
type checker struct {
	schema  *schema.Schema
	others  []*schema.Schema // the oldest first
	place   int              // of the argument that is looked at
	label   string           // of that argument, as problems name it
	found   []placed
	defined map[kind]map[string]bool
	uses    []use
	open    map[kind]bool // there may be ids of the kind that the arguments do not show
	machine string        // the machine type
	unnamed bool          // a PCI bridge has no id, and QEMU names its bus

	errors, warnings int  // in found
	unshown          int  // warnings that are not in found
	ended            bool // there is an error more than MaxProblems
	searched         int  // near names
}

func newChecker(s *schema.Schema, others []*schema.Schema) *checker {
	c := &checker{schema: s, label: "arguments", defined: map[kind]map[string]bool{}, open: map[kind]bool{}}
	for _, o := range others {
		if o != nil && o.Version != s.Version {
			c.others = append(c.others, o)
		}
	}
	slices.SortFunc(c.others, func(a, b *schema.Schema) int { return compareVersions(a.Version, b.Version) })
	return c
}

func (c *checker) problem(format string, values ...any) { c.report(false, format, values...) }

func (c *checker) warn(format string, values ...any) { c.report(true, format, values...) }

// report keeps a problem, while there are few. It is called for each name of an argument, and there may be very many.
func (c *checker) report(warning bool, format string, values ...any) {
	switch {
	case warning && c.warnings >= MaxProblems:
		c.unshown++
		return
	case warning:
		c.warnings++
	case c.errors >= MaxProblems:
		c.ended = true
		return
	default:
		c.errors++
	}
	c.found = append(c.found, placed{Problem{c.label, printable(fmt.Sprintf(format, values...)), warning}, c.place})
}

// printable keeps a problem on its line, and short.
func printable(text string) string {
	const longest = 600 // bytes
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest], "") + "…"
	}
	return text
}

// argument checks the first of the arguments and returns how many words it has.
func (c *checker) argument(words []string) int {
	c.place++
	word := words[0]
	if !strings.HasPrefix(word, "-") {
		return 1 // an image of a disk
	}
	name := strings.TrimPrefix(strings.TrimPrefix(word, "-"), "-") // QEMU takes one dash or two
	c.label = "-" + printable(shorten(name))
	known := c.schema.HasFlag(name) || name == "M" // which -help leaves out
	if !known {
		c.problem("QEMU %s has no such option%s", c.schema.Release(), c.hint(name, slices.Values(c.schema.Flags), func(s *schema.Schema) bool { return s.HasFlag(name) }))
	}
	if withoutValue(name) {
		return 1
	}
	if len(words) == 1 || !known && strings.HasPrefix(words[1], "-") {
		if known {
			c.problem("it needs a value")
		}
		return 1
	}
	if known {
		c.value(name, words[1])
	}
	return 2
}

// withoutValue reports whether an option takes no value (QEMU, qemu-options.hx: all that have no HAS_ARG, of 7.2 to
// 11.1).
func withoutValue(name string) bool {
	switch name {
	case "h", "help", "version", "snapshot", "full-screen", "portrait", "nographic", "usb", "win2k-hack", "no-fd-bootchk", "no-acpi", "no-hpet", "S",
		"daemonize", "enable-kvm", "no-reboot", "no-shutdown", "preconfig", "only-migratable", "nodefaults", "no-user-config", "mem-prealloc", "s",
		"singlestep", "one-insn-per-tb", "xen-attach", "xen-domid-restrict", "enable-sync-profile", "async-teardown", "audio-help", "perfmap", "jitdump", "enable-fips":
		return true
	}
	return false
}

// value checks an option's value.
func (c *checker) value(flag, value string) {
	if value == "help" || value == "?" || strings.HasSuffix(value, ",help") || strings.HasSuffix(value, ",?") {
		return // QEMU prints something and ends
	}
	switch flag {
	case "device":
		c.device(value)
	case "blockdev", "netdev", "object", "display", "numa", "audiodev", "action":
		c.typed(flag, value)
	case "machine", "M":
		c.machineType(value)
	case "cpu":
		c.cpu(value)
	case "accel":
		c.accelerator(value)
	case "global":
		c.global(value)
	case "smbios":
		c.smbios(value)
	case "drive":
		c.drive(value)
	default:
		c.option(flag, value)
	}
}

// hint ends a complaint about a name: which release has it, or what name was meant.
func (c *checker) hint(name string, known iter.Seq[string], has func(*schema.Schema) bool) string {
	if text := c.elsewhere(has); text != "" {
		return "; " + text
	}
	return c.meant(name, known)
}

// meant ends a complaint about a name with the name that was meant.
func (c *checker) meant(name string, known iter.Seq[string]) string {
	if c.searched >= maxNear {
		return ""
	}
	c.searched++
	if meant := near(name, known); meant != "" {
		return fmt.Sprintf("; did you mean %q?", meant)
	}
	return ""
}

// elsewhere returns which other release of QEMU has something that this one has not: the first after it, or the last
// before.
func (c *checker) elsewhere(has func(*schema.Schema) bool) string {
	text := ""
	for _, o := range c.others {
		if !has(o) {
			continue
		}
		if compareVersions(o.Version, c.schema.Version) > 0 {
			return fmt.Sprintf("it is newer than QEMU %s: QEMU %s has it", c.schema.Release(), o.Release())
		}
		text = fmt.Sprintf("QEMU %s still had it", o.Release())
	}
	return text
}

// compareVersions compares versions such as 7.2.22, number by number.
func compareVersions(a, b string) int { return slices.Compare(numbers(a), numbers(b)) }

func numbers(version string) []int {
	var all []int
	for part := range strings.SplitSeq(version, ".") {
		n := 0
		for _, r := range part {
			if r < '0' || r > '9' || n > 1<<20 {
				break
			}
			n = n*10 + int(r-'0')
		}
		all = append(all, n)
	}
	return all
}
