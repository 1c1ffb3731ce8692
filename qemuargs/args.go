package qemuargs

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Arg is one argument: a flag and its value. The value is nil, a string that
// is passed as it is, Options, or property data that is written as JSON.
type Arg struct {
	Flag  string
	Value any
}

// Options is a value in QEMU's key=value,key=value syntax.
type Options []Option

// Option is one key and value. An empty key gives the value alone, as in
// -machine TYPE,….
type Option struct{ Key, Value string }

func (o Options) String() string {
	parts := make([]string, len(o))
	for i, option := range o {
		// QEMU reads ",," as a comma within a value.
		value := strings.ReplaceAll(option.Value, ",", ",,")
		if option.Key == "" {
			parts[i] = value
		} else {
			parts[i] = option.Key + "=" + value
		}
	}
	return strings.Join(parts, ",")
}

// value returns the argument's value as QEMU gets it.
func (a Arg) value() string {
	switch v := a.Value.(type) {
	case string:
		return v
	case Options:
		return v.String()
	default:
		data, err := json.Marshal(v)
		if err != nil {
			// Only the plain structs of this package come here.
			panic(fmt.Sprintf("qemuargs: marshal %T: %v", v, err))
		}
		return string(data)
	}
}

// Strings returns the argument vector, without the program's name.
func Strings(args []Arg) []string {
	var s []string
	for _, a := range args {
		s = append(s, a.Flag)
		if a.Value != nil {
			s = append(s, a.value())
		}
	}
	return s
}

// process returns the arguments of QEMU itself, which every machine has.
func (m *Machine) process() []Arg {
	return []Arg{
		{Flag: "-name", Value: Options{{Key: "guest", Value: m.Name}, {Key: "debug-threads", Value: "on"}}},
		{Flag: "-S"},
		{Flag: "-no-user-config"},
		{Flag: "-nodefaults"},
	}
}

// platform returns the arguments of board, CPUs and memory.
func (m *Machine) platform() []Arg {
	args := append([]Arg{
		{Flag: "-machine", Value: m.board()},
		{Flag: "-accel", Value: m.accel()},
		{Flag: "-cpu", Value: m.CPU.model()},
		{Flag: "-m", Value: m.memory()},
	}, m.ram()...)
	return append(args,
		Arg{Flag: "-overcommit", Value: "mem-lock=off"}, // the guest takes its memory as it uses it
		Arg{Flag: "-smp", Value: m.CPU.smp()},
		Arg{Flag: "-uuid", Value: m.UUID})
}

// reset returns the arguments of the guest's reset: what it boots from, and what a reboot does.
func (m *Machine) reset() (args []Arg) {
	if m.Boot == BootStrict {
		args = append(args, Arg{Flag: "-boot", Value: "strict=on"})
	}
	if m.EndOnReboot {
		args = append(args, Arg{Flag: "-action", Value: Options{{Key: "reboot", Value: "shutdown"}}})
	}
	return args
}

// bounds returns the arguments by which QEMU gives up what it does not need, and by which its messages have the time.
func (m *Machine) bounds() []Arg {
	return []Arg{
		{Flag: "-sandbox", Value: "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"},
		{Flag: "-msg", Value: "timestamp=on"},
	}
}

func (m *Machine) accel() Options {
	accel := Options{{Value: string(m.Accelerator)}}
	if m.Accelerator == TCG {
		// Unit: MiB. Without a limit the translation cache takes up to 1 GiB, which the pod has
		// not booked. Linux aligns a mapping to huge pages if its size is a multiple of 2 MiB, and
		// QEMU asks for huge pages here: with an even size the first byte of code takes 2 MiB.
		accel = append(accel, Option{Key: "tb-size", Value: "127"},
			Option{Key: "thread", Value: "multi"})
	}
	return accel
}

// model returns the value of -cpu.
func (c CPU) model() Options {
	cpu := Options{{Value: c.Model}}
	for _, flag := range c.Flags {
		cpu = append(cpu, Option{Value: flag})
	}
	return cpu
}

// Quote returns the arguments as lines that can be pasted into a shell: one
// argument with its value per line, each but the last ending in " \".
func Quote(program string, args []Arg) string {
	lines := []string{program}
	for _, a := range args {
		line := "  " + a.Flag
		if a.Value != nil {
			line += " " + shellQuote(a.value())
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, " \\\n") + "\n"
}

// QuoteWords does the same with a process' argument vector, which begins with the program.
func QuoteWords(words []string) string {
	var text strings.Builder
	for i, word := range words {
		switch {
		case i == 0:
			text.WriteString(shellQuote(word))
		case strings.HasPrefix(word, "-") && words[i-1] != "-append": // the kernel's arguments may begin with anything
			text.WriteString(" \\\n  " + word)
		default:
			text.WriteString(" " + shellQuote(word))
		}
	}
	return text.String() + "\n"
}

// shellQuote leaves alone what no shell would touch.
func shellQuote(s string) string {
	plain := s != "" && strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_=.,:/@%+", r))
	}) < 0
	if plain {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
