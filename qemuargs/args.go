package qemuargs

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Arg is one argument: a flag and its value. The value is nil, a string that
// is passed as it is, Options, or property data that is written as JSON.
type Arg struct {
	Flag  string
	Value any
	// Of is the part of the Machine that the argument is of, and From what of the part it is
	// made of: paths below the part, with commas between them. Without From, the argument is
	// there because the part is. An argument that every machine has, has a Rule instead.
	Of   Part
	From string
	Rule string
}

// Options is a value in QEMU's key=value,key=value syntax.
type Options []Option

// Option is one key and value. An empty key gives the value alone, as in
// -machine TYPE,….
type Option struct {
	Key, Value string
	// From and Rule say what the option comes from, as those of an Arg.
	From, Rule string
}

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

// Args are the arguments of the machine's Program. The order is fixed. QEMU
// starts with stopped CPUs (-S), which QMP sets running. QEMU must inherit the files of
// Inherits, in their order.
func (m *Machine) Args() []Arg {
	args, files := m.platform(), m.descriptors()
	args = append(args, m.monitor(files)...)
	for _, t := range m.IOThreads {
		args = append(args, t.arg())
	}
	for _, p := range m.RootPorts {
		args = append(args, Arg{Flag: "-device", Value: p.device(), Of: Part{Field: "rootPorts", Name: p.ID}})
	}
	args = append(args, m.places()...)
	for _, c := range m.AHCI {
		args = append(args, Arg{Flag: "-device", Value: c.device(), Of: Part{Field: "ahci", Name: c.ID}})
	}
	if m.SCSI != nil {
		args = append(args, Arg{Flag: "-device", Value: m.SCSI.device(), Of: Part{Field: "scsi"}})
	}
	if m.USB != nil {
		args = append(args, Arg{Flag: "-device", Value: m.USB.device(), Of: Part{Field: "usb"}})
	}
	for _, nic := range m.NICs {
		of := Part{Field: "nics", Name: nic.Name}
		if nic.HostDevice == "" {
			args = append(args, Arg{Flag: "-netdev", Value: nic.Netdev(files.tap(nic)), Of: of})
		}
		args = append(args, Arg{Flag: "-device", Value: nic.Device(), Of: of})
	}
	for _, d := range m.Disks {
		args = append(args, d.args(files)...)
	}
	for _, f := range m.FileSystems {
		args = append(args, f.args(files[Inherited{Kind: InheritedFileSystem, Name: f.Name}])...)
	}
	args = append(args, m.platformDevices()...)
	if m.Agent != nil {
		args = append(args, m.Agent.args(files[Inherited{Kind: InheritedAgent}])...)
	}
	args = append(args, m.TPM.args(files[Inherited{Kind: InheritedTPM}])...)
	args = append(args, m.display()...)
	return append(args,
		Arg{Flag: "-sandbox", Value: "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny", Rule: "QEMU gives up what it does not need"},
		Arg{Flag: "-msg", Value: "timestamp=on", Rule: "QEMU's messages have the time"})
}

type rngProps struct {
	QOMType  string `json:"qom-type" rule:"a source of random numbers on the host"`
	ID       string `json:"id" rule:"the name by which the device finds the source"`
	Filename string `json:"filename" rule:"the kernel's random numbers"`
}

func (m *Machine) platform() []Arg {
	args := []Arg{
		{Flag: "-name", Value: Options{{Key: "guest", Value: m.Name, From: "name"}, {Key: "debug-threads", Value: "on", Rule: "QEMU's threads have names"}}, From: "name"},
		{Flag: "-S", Rule: "QMP sets the CPUs running, when all is ready"},
		{Flag: "-no-user-config", Rule: "no file of the node adds to the machine"},
		{Flag: "-nodefaults", Rule: "QEMU adds no device by itself"},
		{Flag: "-machine", Value: m.board(), From: "type"},
		{Flag: "-accel", Value: m.accel(), From: "accelerator"},
		{Flag: "-cpu", Value: m.CPU.model(), Of: Part{Field: "cpu"}},
		{Flag: "-m", Value: m.memory(), From: "memoryBytes"},
	}
	args = append(args, m.ram()...)
	args = append(args, []Arg{
		{Flag: "-overcommit", Value: "mem-lock=off", Rule: "QEMU does not lock the guest's memory: the guest takes it as it uses it"},
		{Flag: "-smp", Value: m.CPU.smp(), Of: Part{Field: "cpu"}},
		{Flag: "-uuid", Value: m.UUID, From: "uuid"},
		{Flag: "-smbios", Value: m.SMBIOS.options(m.UUID), Of: Part{Field: "smbios"}},
	}...)
	args = append(args, m.Chassis.args()...)
	for _, t := range m.ACPITables {
		args = append(args, t.args()...)
	}
	args = append(args, m.boardArgs()...)
	args = append(args, m.Firmware.args(m.descriptors())...)
	args = append(args, m.Kernel.args()...)
	if m.Boot == BootStrict {
		args = append(args, Arg{Flag: "-boot", Value: "strict=on", From: "boot"})
	}
	if m.EndOnReboot {
		args = append(args, Arg{Flag: "-action", Value: Options{{Key: "reboot", Value: "shutdown", Rule: "QEMU ends where it would reset the guest"}}, From: "endOnReboot"})
	}
	return args
}

func (m *Machine) accel() Options {
	accel := Options{{Value: string(m.Accelerator), From: "accelerator"}}
	if m.Accelerator == TCG {
		// Unit: MiB. Without a limit the translation cache takes up to 1 GiB, which the pod has
		// not booked. Linux aligns a mapping to huge pages if its size is a multiple of 2 MiB, and
		// QEMU asks for huge pages here: with an even size the first byte of code takes 2 MiB.
		accel = append(accel, Option{Key: "tb-size", Value: "127", From: "accelerator", Rule: "MiB at most of translated code, which the pod has booked"},
			Option{Key: "thread", Value: "multi", From: "accelerator", Rule: "a thread for each virtual CPU"})
	}
	return accel
}

// model is the value of -cpu.
func (c CPU) model() Options {
	cpu := Options{{Value: c.Model, From: "model"}}
	for _, flag := range c.Flags {
		cpu = append(cpu, Option{Value: flag, From: "flags[" + flag + "]"})
	}
	return cpu
}

// args are none for a machine that boots from its disks.
func (k *Kernel) args() []Arg {
	if k == nil {
		return nil
	}
	of := Part{Field: "kernel"}
	args := []Arg{{Flag: "-kernel", Value: k.Path, Of: of, From: "path"}}
	if k.Initrd != "" {
		args = append(args, Arg{Flag: "-initrd", Value: k.Initrd, Of: of, From: "initrd"})
	}
	if k.Args != "" {
		args = append(args, Arg{Flag: "-append", Value: k.Args, Of: of, From: "args"})
	}
	return args
}

func (s SMBIOS) options(uuid string) Options {
	o := Options{{Key: "type", Value: "1", Rule: "the structure that describes the system"}}
	for _, p := range []Option{{Key: "manufacturer", Value: s.Manufacturer, From: "manufacturer"}, {Key: "product", Value: s.Product, From: "product"},
		{Key: "version", Value: s.Version, From: "version"}, {Key: "sku", Value: s.SKU, From: "sku"}, {Key: "family", Value: s.Family, From: "family"}, {Key: "serial", Value: s.Serial, From: "serial"}, {Key: "uuid", Value: uuid, From: "/uuid"}} {
		if p.Value != "" {
			o = append(o, p)
		}
	}
	return o
}

type monitorProps struct {
	QOMType string `json:"qom-type" rule:"the monitor that the launcher speaks QMP to"`
	ID      string `json:"id" rule:"the monitor's name"`
	Chardev string `json:"chardev" rule:"the launcher is at the other end"`
}

func (m *Machine) monitor(files descriptors) []Arg {
	args := []Arg{{Flag: "-chardev", Value: socket("qmp", files[Inherited{Kind: InheritedQMP}]), Rule: "the launcher speaks QMP to QEMU"}}
	if m.MonitorObject {
		args = append(args, Arg{Flag: "-object", Value: monitorProps{QOMType: "monitor-qmp", ID: "monitor0", Chardev: "qmp"}, From: "monitorObject"})
	} else {
		args = append(args, Arg{Flag: "-mon", Value: "chardev=qmp,mode=control", From: "monitorObject"})
	}
	if m.Serial != nil {
		serial := m.Serial.args
		if m.isVirt() {
			serial = m.Serial.virtArgs
		}
		args = append(args, serial(files[Inherited{Kind: InheritedSerial}])...)
	}
	return args
}

// socket is a socket that QEMU inherits.
func socket(id string, file int) Options {
	return Options{
		{Value: "socket", Rule: "a socket that the launcher has opened"},
		{Key: "id", Value: id, Rule: "the socket's name"},
		{Key: "fd", Value: strconv.Itoa(file), Rule: inheritedRule},
	}
}

// inheritedRule says what a descriptor's number comes from.
const inheritedRule = "the number of an inherited file, by the files' order"

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
