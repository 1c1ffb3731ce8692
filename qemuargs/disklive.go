package qemuargs

import (
	"reflect"
	"slices"
)

// What becomes of a disk while the guest runs.

func (d Disk) entry() any { return d }

// plugs reports whether QEMU plugs the disk: in a root port, or on the SCSI controller. Controllers of SATA plug
// nothing, and a drive on USB needs a port.
func (d Disk) plugs() bool {
	if d.PCI != nil {
		return d.PCI.plugs()
	}
	return d.Bus == SCSIBus
}

// isCD reports whether the disk is a drive with a tray.
func (d Disk) isCD() bool { return d.Driver == IDECD || d.Driver == SCSICD }

// become changes the medium of a CD-ROM drive, and lets an image grow. Nothing else of a disk changes while the guest
// has it.
func (d Disk) become(next live, running liveFiles) (changes []Change) {
	to := next.(Disk)
	if grown := d; to.Image.Size > d.Image.Size {
		grown.Image.Size = to.Image.Size
		if reflect.DeepEqual(grown, to) {
			resize := Step{Command: "block_resize", Arguments: resizeProps{d.NodeName(), to.Image.Size}}
			return []Change{{Steps: []Step{resize}, Entry: to}}
		}
	}
	empty, other := d, to
	empty.Image, other.Image = Image{}, Image{}
	if !d.isCD() || d.Overlay != nil || !reflect.DeepEqual(empty, other) {
		return nil
	}
	if !d.isEmpty() {
		changes = append(changes, Change{Steps: d.eject(running), Entry: empty})
	}
	if !to.isEmpty() {
		changes = append(changes, Change{Steps: to.insert(running), Entry: to})
	}
	return changes
}

type resizeProps struct {
	Node string `json:"node-name"`
	Size int64  `json:"size"`
}

type byDrive struct {
	ID   string `json:"id"`
	Node string `json:"node-name,omitempty"`
}

// medium is the image of a drive without the drive.
type medium struct{ Disk }

func (m medium) args(files files) []Arg {
	args := m.Disk.args(files)
	return args[:len(args)-len(m.bridge())-1] // the drive is last, and what it sits on
}

// parting takes the medium out of a drive that goes: QEMU 11.1 keeps the medium of a drive that it was put into while
// the guest ran.
func (d Disk) parting() []Step {
	if !d.isCD() || d.isEmpty() {
		return nil
	}
	drive := byDrive{ID: d.ID()}
	return []Step{
		{Command: "blockdev-open-tray", Arguments: drive, Wait: WaitTray, Device: d.ID(),
			Undo: &Step{Command: "blockdev-close-tray", Arguments: drive}},
		{Command: "blockdev-remove-medium", Arguments: drive,
			Undo: &Step{Command: "blockdev-insert-medium", Arguments: byDrive{d.ID(), d.NodeName()}}},
	}
}

// eject returns the steps that take the medium out: the tray opens, and the drive stays without a medium.
func (d Disk) eject(running liveFiles) []Step {
	shut := Step{Command: "blockdev-close-tray", Arguments: byDrive{ID: d.ID()}}
	return slices.Concat(d.parting(), unplug(medium{d}, running), []Step{shut})
}

// insert returns the steps that put the medium into the empty drive.
func (d Disk) insert(running liveFiles) []Step {
	drive := byDrive{ID: d.ID()}
	shut := Step{Command: "blockdev-close-tray", Arguments: drive}
	return append(plug(medium{d}, running),
		Step{Command: "blockdev-open-tray", Arguments: drive, Undo: &shut},
		Step{Command: "blockdev-insert-medium", Arguments: byDrive{d.ID(), d.NodeName()},
			Undo: &Step{Command: "blockdev-remove-medium", Arguments: drive}},
		shut)
}
