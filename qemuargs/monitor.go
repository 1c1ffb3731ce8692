package qemuargs

type monitorProps struct {
	QOMType string `json:"qom-type"`
	ID      string `json:"id"`
	Chardev string `json:"chardev"`
}

// monitor returns the arguments of the monitor that the launcher speaks QMP to; file is the descriptor of its socket.
func (m *Machine) monitor(file string) []Arg {
	args := []Arg{{Flag: "-chardev", Value: socket("qmp", file)}}
	if m.MonitorObject {
		monitor := monitorProps{QOMType: "monitor-qmp", ID: "monitor0", Chardev: "qmp"}
		return append(args, Arg{Flag: "-object", Value: monitor})
	}
	return append(args, Arg{Flag: "-mon", Value: "chardev=qmp,mode=control"})
}

// socket returns the value of -chardev for a socket that the launcher has opened and QEMU inherits.
func socket(id, file string) Options {
	return Options{{Value: "socket"}, {Key: "id", Value: id}, {Key: "fd", Value: file}}
}
