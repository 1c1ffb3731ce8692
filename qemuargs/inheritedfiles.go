package qemuargs

import "strconv"

// InheritedKind is what an inherited file is.
type InheritedKind string

// Kinds of inherited files.
const (
	InheritedQMP       InheritedKind = "qmp"       // the monitor's socket
	InheritedSerial    InheritedKind = "serial"    // the serial port's socket
	InheritedAgent     InheritedKind = "agent"     // the socket of the guest agent's port
	InheritedTPM       InheritedKind = "tpm"       // the control socket of the TPM's emulator
	InheritedTap       InheritedKind = "tap"       // a queue of the tap behind a NIC
	InheritedVhost     InheritedKind = "vhost"     // /dev/vhost-net, opened for a queue of a tap
	InheritedDisk      InheritedKind = "disk"      // the image of a disk, where that lies in a volume
	InheritedImage     InheritedKind = "image"     // the image of a disk that a container of the pod hands out
	InheritedVariables InheritedKind = "variables" // the UEFI variables, where they are in a volume
	// InheritedFileSystem is a connection to the program that serves a file system.
	InheritedFileSystem InheritedKind = "filesystem"
	// InheritedLifeline is a connection that tells what is around the program of a file system when QEMU has ended. QEMU
	// does nothing with it.
	InheritedLifeline InheritedKind = "lifeline"
	// InheritedPasst is a connection to the program passt behind a NIC.
	InheritedPasst InheritedKind = "passt"
	// InheritedPasstLifeline is the same as InheritedLifeline, for the program passt behind a NIC.
	InheritedPasstLifeline InheritedKind = "passt-lifeline"
)

// Inherited is a file that QEMU gets as an open descriptor.
type Inherited struct {
	Kind InheritedKind
	// Name of the NIC, disk or file system in the Machine; empty where there is one of the kind.
	Name string
	// Index of a tap's queue, also of the queue that a vhost file is for.
	Index int
}

// String returns the file's name where others speak of it: qmp, serial, agent, tpm, tap/<nic>/<queue>,
// vhost/<nic>/<queue>, passt/<nic>, passt-lifeline/<nic>, disk/<name>, image/<name>, filesystem/<name>,
// lifeline/<name>, variables. Names of NICs, disks and file systems hold no slash.
func (i Inherited) String() string {
	switch i.Kind {
	case InheritedTap, InheritedVhost:
		return string(i.Kind) + "/" + i.Name + "/" + strconv.Itoa(i.Index)
	case InheritedDisk, InheritedImage, InheritedFileSystem, InheritedLifeline, InheritedPasst, InheritedPasstLifeline:
		return string(i.Kind) + "/" + i.Name
	}
	return string(i.Kind)
}

// Bringer is who brings a file to the launcher, which hands it to QEMU.
type Bringer string

// Bringers of files.
const (
	ByLauncher Bringer = "launcher" // the launcher makes or opens the file itself
	ByHandler  Bringer = "handler"  // virt-handler sends the file
	ByProgram  Bringer = "program"  // another container of the pod serves it on a socket
)

// Bringer returns who brings the file.
func (i Inherited) Bringer() Bringer {
	switch i.Kind {
	case InheritedTap, InheritedVhost:
		return ByHandler
	case InheritedFileSystem, InheritedLifeline, InheritedPasst, InheritedPasstLifeline, InheritedImage:
		return ByProgram
	}
	return ByLauncher
}

// FirstInherited is the number, in the QEMU process, of the first inherited file:
// os/exec's ExtraFiles begin after the standard ones.
const FirstInherited = 3

// Inherits returns the one list of the files that QEMU inherits. Descriptor numbers follow its
// order, from FirstInherited on. No other code needs to know the order.
func (m *Machine) Inherits() []Inherited {
	var files []Inherited
	for _, p := range m.parts() {
		files = append(files, p.inherits()...)
	}
	return files
}

// isSet reports whether QEMU opens the file by a descriptor set.
func (i Inherited) isSet() bool {
	return i.Kind == InheritedDisk || i.Kind == InheritedImage || i.Kind == InheritedVariables
}

// files name the files of a QEMU in arguments: those that it inherits, or those that a running one gets.
type files interface {
	// descriptor returns the name that a property has for a file: the number that the file has in the QEMU process, or the
	// name by which QEMU got it (getfd).
	descriptor(Inherited) string
	// set returns the number of the descriptor set that the file is in, by which QEMU opens it: setPath.
	set(Inherited) int
}

// setPath returns the path by which QEMU opens the file of a descriptor set.
func setPath(set int) string { return "/dev/fdset/" + strconv.Itoa(set) }

// descriptors has, for each file that QEMU inherits, the number of its descriptor in the QEMU process. The file's
// descriptor set has the same number.
type descriptors map[Inherited]int

func (d descriptors) descriptor(file Inherited) string { return strconv.Itoa(d[file]) }
func (d descriptors) set(file Inherited) int           { return d[file] }

func (m *Machine) descriptors() descriptors {
	numbers := descriptors{}
	for i, file := range m.Inherits() {
		numbers[file] = FirstInherited + i
	}
	return numbers
}

// addSet returns the argument that makes the set of a file.
func addSet(files files, file Inherited) Arg {
	return Arg{Flag: "-add-fd", Value: Options{{Key: "fd", Value: files.descriptor(file)},
		{Key: "set", Value: strconv.Itoa(files.set(file))}}}
}
