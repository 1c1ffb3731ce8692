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

// value is the argument's value as QEMU gets it.
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

// Strings is the argument vector, without the program's name.
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

// Args are the arguments of qemu-system-x86_64 for this machine. The order is fixed. QEMU
// starts with stopped CPUs (-S), which QMP sets running. QEMU must inherit the files of
// Inherits, in their order.
func (m *Machine) Args() []Arg {
	args, files := m.platform(), m.descriptors()
	args = append(args, m.monitor(files)...)
	for _, p := range m.RootPorts {
		args = append(args, Arg{"-device", p.device()})
	}
	args = append(args, m.places()...)
	for _, c := range m.AHCI {
		args = append(args, Arg{"-device", c.device()})
	}
	if m.SCSI != nil {
		args = append(args, Arg{"-device", m.SCSI.device()})
	}
	if m.USB != nil {
		args = append(args, Arg{"-device", m.USB.device()})
	}
	for _, nic := range m.NICs {
		args = append(args, Arg{"-netdev", nic.Netdev(files.taps(nic))}, Arg{"-device", nic.Device()})
	}
	for _, d := range m.Disks {
		file, inVolume := files[Inherited{Kind: InheritedDisk, Name: d.Name}]
		if inVolume {
			// The set has the descriptor's number.
			args = append(args, Arg{"-add-fd", fmt.Sprintf("fd=%d,set=%d", file, file)})
		}
		for _, node := range d.Blockdevs(file) {
			args = append(args, Arg{"-blockdev", node})
		}
		args = append(args, Arg{"-device", d.Device()})
	}
	args = append(args, m.platformDevices()...)
	if m.Agent != nil {
		args = append(args, m.Agent.args(files[Inherited{Kind: InheritedAgent}])...)
	}
	args = append(args, m.display()...)
	return append(args,
		Arg{"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"},
		Arg{"-msg", "timestamp=on"})
}

type rngProps struct {
	QOMType  string `json:"qom-type"`
	ID       string `json:"id"`
	Filename string `json:"filename"`
}

type memoryProps struct {
	QOMType string `json:"qom-type"`
	ID      string `json:"id"`
	Size    int64  `json:"size"`
}

func (m *Machine) platform() []Arg {
	accel := Options{{"", string(m.Accelerator)}}
	if m.Accelerator == TCG {
		// Unit: MiB. Without a limit the translation cache takes up to 1 GiB, which the pod has
		// not booked.
		accel = append(accel, Option{"tb-size", "128"}, Option{"thread", "multi"})
	}
	cpu := Options{{"", m.CPU.Model}}
	for _, flag := range m.CPU.Flags {
		cpu = append(cpu, Option{"", flag})
	}
	args := []Arg{
		{"-name", Options{{"guest", m.Name}, {"debug-threads", "on"}}},
		{"-S", nil},
		{"-no-user-config", nil},
		{"-nodefaults", nil},
		{"-machine", m.board()},
		{"-accel", accel},
		{"-cpu", cpu},
		{"-m", m.memory()},
		{"-object", memoryProps{QOMType: "memory-backend-ram", ID: ramID, Size: m.MemoryBytes}},
		{"-overcommit", "mem-lock=off"},
		{"-smp", m.CPU.smp()},
		{"-uuid", m.UUID},
		{"-smbios", m.SMBIOS.options(m.UUID)},
	}
	args = append(args, m.boardArgs()...)
	if k := m.Kernel; k != nil {
		args = append(args, Arg{"-kernel", k.Path})
		if k.Initrd != "" {
			args = append(args, Arg{"-initrd", k.Initrd})
		}
		if k.Args != "" {
			args = append(args, Arg{"-append", k.Args})
		}
	}
	if m.Boot == BootStrict {
		args = append(args, Arg{"-boot", "strict=on"})
	}
	return args
}

func (s SMBIOS) options(uuid string) Options {
	o := Options{{"type", "1"}}
	for _, p := range []Option{{"manufacturer", s.Manufacturer}, {"product", s.Product}, {"family", s.Family}, {"serial", s.Serial}, {"uuid", uuid}} {
		if p.Value != "" {
			o = append(o, p)
		}
	}
	return o
}

type monitorProps struct {
	QOMType string `json:"qom-type"`
	ID      string `json:"id"`
	Chardev string `json:"chardev"`
}

func (m *Machine) monitor(files descriptors) []Arg {
	args := []Arg{{"-chardev", fmt.Sprintf("socket,id=qmp,fd=%d", files[Inherited{Kind: InheritedQMP}])}}
	if m.MonitorObject {
		args = append(args, Arg{"-object", monitorProps{QOMType: "monitor-qmp", ID: "monitor0", Chardev: "qmp"}})
	} else {
		args = append(args, Arg{"-mon", "chardev=qmp,mode=control"})
	}
	if m.Serial != nil {
		args = append(args, m.Serial.args(files[Inherited{Kind: InheritedSerial}])...)
	}
	return args
}

// Quote is the arguments as lines that can be pasted into a shell: one
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
