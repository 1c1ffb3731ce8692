package qemuargs

import (
	"encoding/json"
	"fmt"
	"slices"
)

// Step is one command of QMP to a running QEMU.
type Step struct {
	// Command is QMP's, such as device_add, and Arguments are what it takes, as JSON.
	Command   string
	Arguments any
	// File, if set, is the file that QEMU gets along with the command.
	File *Inherited
	// Set is the descriptor set that comes, with File, or goes; 0 is none.
	Set int
	// Wait is what the step waits for after QEMU's answer, and Device the device that it is about.
	Wait   Wait
	Device string
	// Undo takes the step back. It is nil where there is nothing to take back.
	Undo *Step
}

// String returns the step as a line: the command, its arguments, and what goes along or is waited for.
func (s Step) String() string {
	line := s.Command + " " + Arg{Value: s.Arguments}.value()
	if s.File != nil {
		line += " + " + s.File.String()
	}
	if s.Wait != WaitNothing {
		line += " until " + string(s.Wait)
	}
	return line
}

// Wait is what a step waits for.
type Wait string

// What steps wait for, by QEMU's names of events.
const (
	// WaitNothing: the change is there when QEMU has answered.
	WaitNothing Wait = ""
	// WaitDeleted: the guest has let go of the device. QEMU forgets a request that comes before the guest's firmware is
	// done, so whoever waits asks again.
	WaitDeleted Wait = "DEVICE_DELETED"
	// WaitTray: the drive is open. A guest may hold it shut, and QEMU tells nothing then: only force opens it.
	WaitTray Wait = "DEVICE_TRAY_MOVED"
)

// byID are the arguments of commands that name a device, a backend or an object.
type byID struct {
	ID string `json:"id"`
}

type byNode struct {
	Node string `json:"node-name"`
}

type byName struct {
	Name string `json:"fdname"`
}

type setProps struct {
	Set  int    `json:"fdset-id"`
	Name string `json:"opaque,omitempty"`
}

// plug returns the steps by which a running QEMU gets a part.
func plug(p part, running liveFiles) []Step {
	for _, file := range p.inherits() {
		if file.isSet() {
			running.sets.add(file)
		}
	}
	return adding(p, running)
}

// unplug returns the steps by which a running QEMU loses a part: what added it is undone, from the end.
func unplug(p part, running liveFiles) (steps []Step) {
	for _, step := range slices.Backward(adding(p, running)) {
		if step.Command != "getfd" { // the backend took the file along
			steps = append(steps, *step.Undo)
		}
	}
	for _, file := range p.inherits() {
		delete(running.sets, file)
	}
	return steps
}

// adding returns the steps that add a part whose files have their sets. They are the part's arguments, one by one.
func adding(p part, running liveFiles) (steps []Step) {
	var sets []Inherited
	for _, file := range p.inherits() {
		if file.isSet() {
			sets = append(sets, file)
			continue
		}
		// QEMU forgets the name when a backend takes the file. Undo is for a backend that was refused.
		steps = append(steps, Step{Command: "getfd", Arguments: byName{file.String()}, File: &file,
			Undo: &Step{Command: "closefd", Arguments: byName{file.String()}}})
	}
	for _, arg := range p.args(running) {
		step := Step{Arguments: arg.Value}
		switch arg.Flag {
		case "-add-fd":
			file := sets[0]
			sets = sets[1:]
			step = addFD(file, running.sets[file])
		case "-blockdev":
			step.Command, step.Undo = "blockdev-add", &Step{Command: "blockdev-del", Arguments: byNode{idIn(arg, "node-name")}}
		case "-netdev":
			step.Command, step.Undo = "netdev_add", &Step{Command: "netdev_del", Arguments: byID{idIn(arg, "id")}}
		case "-object":
			step.Command, step.Undo = "object-add", &Step{Command: "object-del", Arguments: byID{idIn(arg, "id")}}
		case "-device":
			id := idIn(arg, "id")
			step.Command, step.Device, step.Undo = "device_add", id,
				&Step{Command: "device_del", Arguments: byID{id}, Wait: WaitDeleted, Device: id}
		default:
			panic(fmt.Sprintf("qemuargs: no step adds %s", arg.Flag)) // a test plugs each kind of part
		}
		steps = append(steps, step)
	}
	return steps
}

func addFD(file Inherited, set int) Step {
	return Step{Command: "add-fd", Arguments: setProps{set, file.String()}, File: &file, Set: set,
		Undo: &Step{Command: "remove-fd", Arguments: setProps{Set: set}, Set: set}}
}

// idIn returns a property of an argument by which QEMU names what the argument makes.
func idIn(a Arg, property string) string {
	var properties map[string]any
	if err := json.Unmarshal([]byte(a.value()), &properties); err != nil {
		panic(fmt.Sprintf("qemuargs: read %s: %v", a.Flag, err)) // only the structs of this package come here
	}
	name, _ := properties[property].(string)
	return name
}
