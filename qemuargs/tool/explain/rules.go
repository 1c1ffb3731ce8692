package explain

import (
	"cmp"
	"slices"
	"strings"
)

// rule is a sentence about arguments that no field of a manifest says.
type rule struct {
	// of matches an argument by its flag and its kind (driver, type), or by its flag and its id. * stands for any text.
	of string
	// properties that the rule is about, with spaces between them. "there" is the argument itself, and "value" a value
	// without a name.
	properties string
	// value, if set, matches the property's value. * stands for any text.
	value string
	says  string
}

// rules are in the order in which they are told. A rule is for what has no source, and for what a source does not
// explain; nothing has to have one.
var rules = []rule{
	{"-S", "there", "", "QMP sets the CPUs running, when all is ready"},
	{"-no-user-config", "there", "", "no file of the node adds to the machine"},
	{"-nodefaults", "there", "", "QEMU adds no device by itself"},
	{"-name", "debug-threads", "", "QEMU's threads have names"},
	{"-sandbox", "there value", "", "QEMU gives up what it does not need"},
	{"-msg", "there value", "", "QEMU's messages have the time"},
	{"-display", "there value", "", "no window on the node"},
	{"-overcommit", "there value", "", "QEMU does not lock the guest's memory: the guest takes it as it uses it"},
	{"-boot", "there value", "", "the firmware tries no device without a boot index"},
	{"-action reboot", "there reboot", "", "QEMU ends where it would reset the guest"},
	{"-global ICH9-LPC.disable_s3*", "there value", "", "no suspend to memory: nobody would wake the guest"},
	{"-global ICH9-LPC.disable_s4*", "there value", "", "no suspend to disk: nobody would wake the guest"},
	{"-global ICH9-LPC.acpi-pci-hotplug*", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support", "",
		"PCIe's own hotplug shows the guest what is in the slots, which ACPI would"},
	{"-global q35-pcihost*", "there q35-pcihost.pci-hole64-size", "", "no window for PCI devices above 4 GiB"},
	{"-global cfi.pflash01", "driver", "", "both flash chips"},
	{"-global cfi.pflash01", "property", "", "only system management mode writes to them"},
	{"-global cfi.pflash01", "value", "", "as secure boot needs it"},
	{"-machine", "there", "", "every machine has a board"},
	{"-m", "there", "", "every machine has memory"},
	{"-machine", "usb", "", "no USB controller of the board: where there is one, it is a device"},
	{"-machine", "vmport", "", "no I/O port of VMware's"},
	{"-machine", "dump-guest-core", "", "the guest's memory is not in QEMU's core files"},
	{"-machine", "memory-backend", "", "the guest's memory is the object of this name"},
	{"-machine", "sata", "", "the chipset's SATA controller is there if a disk is on bus sata"},
	{"-machine", "i8042", "", "a keyboard needs graphics; without ACPI the guest resets by the keyboard's controller"},
	{"-machine", "graphics", "", "the BIOS writes to the serial port where there are no graphics"},
	{"-machine", "gic-version", "", "the node's with KVM; QEMU emulates version 3"},
	{"-machine", "acpi", "on", "on unless it is turned off; UEFI needs it"},
	{"-machine", "pflash0 pflash1", "", "the flash chips of UEFI"},
	{"-machine", "smm", "", "QEMU's choice unless it is named; secure boot needs it"},
	{"-accel tcg", "tb-size", "", "MiB at most of translated code, which the pod has booked"},
	{"-accel tcg", "thread", "", "a thread for each virtual CPU"},
	{"-cpu", "there", "", "every machine has CPUs"},
	{"-cpu host", "value", "host", "the host's own model under KVM, and max under TCG"},
	{"-cpu max", "value", "max", "the host's own model under KVM, and max under TCG"},
	{"-cpu base", "value", "base", "a CPU without features, to which the flags add those of the host"},
	{"-cpu", "value", "kvm-pv-*", "only KVM has it"},
	{"-cpu", "value", "hv-*", "only KVM has it"},
	{"-cpu", "value", "kvm*=off", "only KVM has it"},
	{"-cpu", "value", "tsc-frequency=*", "in Hz, so that the guest can move"},
	{"-cpu", "value", "pmu=off", "off for a guest that must answer in time, unless the features name it"},
	{"-cpu", "value", "pauth-impdef=on", "pointer authentication as QEMU does it soonest"},
	{"-smp", "there", "", "every machine has CPUs"},
	{"-smp", "maxcpus", "", "only if there are more than the guest begins with"},
	{"-m", "size", "", "in whole MiB"},
	{"-m", "maxmem", "", "only if it is more than the guest begins with"},
	{"-smbios", "type", "", "the structure that describes the system, or with 3 the chassis"},
	{"-smbios 1", "there manufacturer product family", "",
		"KubeVirt's text, unless the cluster or the VMI has another: guests and their software look for it"},
	{"-rtc", "there", "", "the guest's clock"},
	{"-rtc", "base", "utc", "the clock shows UTC"},
	{"-rtc", "base", "2*", "the time of day when QEMU starts; the launcher writes it just before"},
	{"-rtc", "clock", "", "the guest's own time is vm, and wall time is host"},
	{"-acpitable", "sig", "", "the table's signature"},
	{"-acpitable", "file", "", "the launcher's copy of the table"},
	{"-object memory-backend-ram", "qom-type", "", "memory of QEMU's own process"},
	{"-object memory-backend-memfd", "qom-type", "", "memory of QEMU's own process, that can be of huge pages, and that other programs can map"},
	{"-object memory-backend-*", "there", "", "the guest's memory, or that of one of its NUMA nodes"},
	{"-object memory-backend-*", "id", "", "the name that migration knows, or the number of the node"},
	{"-object memory-backend-*", "size", "", "in whole MiB, and that of nodes divided evenly in whole pages"},
	{"-object memory-backend-memfd", "share", "", "virtiofsd reads and writes the guest's memory"},
	{"-object memory-backend-memfd", "hugetlb", "", "the memory is huge pages"},
	{"-object memory-backend-memfd", "hugetlbsize", "", "the size of a huge page, in bytes"},
	{"-object memory-backend-memfd", "prealloc", "",
		"QEMU takes all pages at its start: where a huge page is missing it ends with an error, and the guest is not killed later"},
	{"-numa node", "there", "", "a node for each of the host's on which the guest has CPUs"},
	{"-numa node", "value nodeid memdev", "", "the nodes are numbered"},
	{"-numa node", "cpus", "", "as many as the guest has of the host's node; the last node has the places for more"},
	{"-chardev qmp", "there", "", "the launcher speaks QMP to QEMU"},
	{"-chardev agent0", "there", "", "every machine has the port of QEMU's guest agent"},
	{"-object monitor-qmp", "there", "", "since 11.1 QEMU wants the monitor as an object"},
	{"-object monitor-qmp", "qom-type", "", "the monitor that the launcher speaks QMP to"},
	{"-object monitor-qmp", "chardev", "", "the launcher is at the other end"},
	{"-mon", "there value", "", "since 11.1 QEMU wants the monitor as an object"},
	{"-vnc", "value", "", "the launcher's VNC socket"},
	{"-vnc", "there", "", "the launcher's VNC socket"},
	{"-blockdev pflash*", "there", "", "the flash chips of UEFI"},
	{"-blockdev pflash0.file", "driver", "", "the firmware is a file"},
	{"-blockdev pflash0.file", "filename", "/usr/share/AAVMF/*", "AAVMF; the launcher's image has it without its zeros"},
	{"-blockdev pflash0.file", "filename", "*/OVMF*", "OVMF has a build for secure boot"},
	{"-blockdev pflash0*", "read-only", "", "the guest does not write to the firmware's code"},
	{"-blockdev pflash0", "driver", "", "raw, or qcow2, of which QEMU reads no zeros into the chip"},
	{"-blockdev pflash1.file", "driver", "", "the variables are a file"},
	{"-blockdev pflash1.file", "filename", "*.fd", "the launcher's copy of the template"},
	{"-blockdev pflash1", "driver", "", "a flash chip's content is raw"},
	{"-blockdev pflash1*", "read-only", "", "the guest writes its variables"},
	{"-add-fd", "there", "", "QEMU gets a descriptor of what is in a volume: of a device, or of a file that it locks"},
	{"-add-fd", "fd", "", "the number of an inherited file, by the files' order"},
	{"-add-fd", "set", "", "the set has the descriptor's number"},
	{"-blockdev disk-*.basefile", "there", "", "an overlay takes the guest's writes: a container disk or an ephemeral volume is only read"},
	{"-blockdev disk-*", "driver", "host_device", "the volume is a device"},
	{"-blockdev disk-*", "driver", "file", "a file, unless the volume is a device"},
	{"-blockdev disk-*", "filename", "/run/kubeqemu/*", "what the launcher makes of the volume's files, which is raw and lies in memory"},
	{"-blockdev disk-*", "filename", "/var/lib/kubeqemu/images/*", "where the launcher has found the file in the container image"},
	{"-blockdev disk-*", "filename", "/var/lib/kubeqemu/overlays/*", "the file that the launcher makes"},
	{"-blockdev disk-*", "locking", "", "QEMU locks the file of a volume"},
	{"-blockdev disk-*", "read-only", "true", "a CD-ROM is only read, what is below an overlay, and another disk where it or its volume says so"},
	{"-blockdev disk-*", "read-only", "false", "the guest writes to it"},
	{"-blockdev disk-*", "discard", "unmap", "what the guest discards takes no room"},
	{"-blockdev disk-*", "discard", "ignore", "virtio-blk offers to discard, whatever the granularity is"},
	{"-blockdev disk-*", "cache", `{"direct":true}`,
		"O_DIRECT where it works, so that the host's page cache does not hold the guest's data a second time"},
	{"-blockdev disk-*", "cache", `{"direct":false}`,
		"the cache mode keeps the data in the host's page cache, O_DIRECT does not work, or the disk lies in memory"},
	{"-blockdev disk-*", "aio", "native", "for a device, and for a file that has all of its room, if cache is none and the node has plenty of " +
		"room for native I/O; else threads, unless a kind is named"},
	{"-blockdev disk-*", "driver", "raw",
		"what the launcher has found the image to be; the disk on a volume, and what the launcher makes of files, is always raw"},
	{"-blockdev disk-*", "driver", "qcow2", "an overlay, and a disk that takes only what the guest has written; or what the launcher has found the image to be"},
	{"-blockdev disk-*", "backing", "null", "no other file, whatever the image's header says"},
	{"-object iothread", "there", "", "a thread for each disk that asks for its own, and for the others one, or with the policy auto as many as " +
		"their turn needs: twice the pod's CPUs in all; or the threads of the pool"},
	{"-object iothread", "qom-type", "", "a thread of QEMU's that serves disks"},
	{"-object iothread", "id", "", "the thread's number"},
	{"-device ide-*", "unit", "", "each SATA bus has one drive"},
	{"-device ide-*", "bus", "", "the next SATA port, in the order of the disks"},
	{"-device scsi-*", "bus", "", "the SCSI controller's, or the bridge's on USB"},
	{"-device scsi-*", "scsi-id lun", "",
		"the controller's drives differ by their logical unit number, in the order of the disks"},
	{"-device usb-storage", "removable", "", "a disk on USB stays in its drive"},
	{"-device usb-bot", "there driver", "", "a CD-ROM drive on USB is a SCSI drive behind this bridge"},
	{"-device usb-*", "bus", "", "the USB controller's"},
	{"-device usb-*", "port", "", "the next port of the USB controller: inputs come first"},
	{"-device virtio-*-pci-transitional", "driver", "", "a transitional device is what guests without virtio 1 know too"},
	{"-device vfio-pci", "driver", "", "VFIO gives the guest the card of the node"},
	{"-device vfio-pci", "host", "", "the card that the device plugin gave the pod for the network"},
	{"-netdev tap", "type", "", "a tap that virt-handler has made"},
	{"-netdev stream", "type", "", "passt, a program beside QEMU, makes the guest's connections anew"},
	{"-netdev stream", "server", "", "the launcher has connected the socket"},
	{"-netdev *", "fd fds vhostfd vhostfds addr", "", "the numbers of inherited files, by the files' order"},
	{"-netdev tap", "vhost", "", "with KVM the node's kernel moves the packets of a virtio card, if it can"},
	{"-device pcie-root-port", "there", "", "a port for each PCI Express device, and spare ones for hotplug: 3, or 6 if the guest has more than 2 GiB"},
	{"-device pcie-root-port", "id chassis", "", "the port's number"},
	{"-device pcie-root-port", "bus addr", "", "eight ports in a slot, from slot 2 on"},
	{"-device pcie-root-port", "port", "", "slot and function as one number"},
	{"-device ich9-ahci", "there driver", "", "the chipset has six SATA ports; more disks on bus sata need more controllers"},
	{"-device ich9-ahci", "id", "", "the controller's number"},
	{"-device ich9-ahci", "bus addr", "", "eight controllers in a slot, from slot 12 on"},
	{"-device virtio-scsi-pci*", "there driver", "", "disks on bus scsi need a controller"},
	{"-device qemu-xhci", "there driver p2 p3", "", "a port for each input and disk on bus usb"},
	{"-device usb-kbd", "there driver", "", "with graphics a keyboard, and a tablet unless there are inputs: the board of arm64 has no PS/2"},
	{"-device usb-tablet", "there driver", "", "each input is a tablet; with graphics a guest of arm64 has one of its own"},
	{"-device virtio-tablet-pci", "driver", "", "each input is a tablet"},
	{"-device virtio-serial-pci*", "driver", "", "the controller of the port of QEMU's guest agent, which every machine has"},
	{"-device virtio-serial-pci*", "there", "", "every machine has the port of QEMU's guest agent"},
	{"-device virtio-serial-pci*", "max_ports", "", "port 0, which can only be a console, and port 1"},
	{"-device virtserialport", "there", "", "every machine has the port of QEMU's guest agent"},
	{"-device virtserialport", "bus", "", "the controller of the port"},
	{"-device virtserialport", "nr", "", "port 0 can only be a console"},
	{"-device virtserialport", "name", "", "the name by which the guest's agent finds the port"},
	{"-device virtio-balloon-pci*", "free-page-reporting", "",
		"the guest gives back freed pages, unless it has huge pages, CPUs of its own, or the annotation"},
	{"-object rng-random", "qom-type filename", "", "the random numbers of the host's kernel"},
	{"-device virtio-rng-pci*", "rng", "", "the source of its random numbers"},
	{"-device pvpanic", "driver", "", "a port of the ISA bus by which the guest says that it has panicked"},
	{"-device pvpanic", "ioport", "", "QEMU's own number"},
	{"-device pvpanic-pci", "driver", "", "a PCI device by which the guest says that it has panicked"},
	{"-audiodev", "there value", "", "the sound goes nowhere"},
	{"-device hda-duplex", "driver", "", "a codec with input and output"},
	{"-device hda-duplex", "bus", "", "the sound card's"},
	{"-device hda-duplex", "cad", "", "the codec's number"},
	{"-device isa-serial", "driver", "", "a serial port of the PC"},
	{"-device isa-serial", "index", "", "the first: COM1, ttyS0"},
	{"-serial", "value", "", "the board's own serial port"},
	{"-device VGA", "vgamem_mb", "", "MiB, QEMU's own number"},
	{"-device virtio-gpu-pci", "driver", "", "unless ramfb is named: the board of arm64 has no VGA"},
	{"-tpmdev", "value", "", "a program beside QEMU is the TPM"},
	{"-tpmdev", "chardev", "", "swtpm is at the other end"},
	{"-device tpm-*", "tpmdev", "", "the emulator of the TPM"},
	{"-device tpm-*", "driver", "", "as in KubeVirt, tpm-crb if the state is persistent, and else tpm-tis; the board of arm64 has tpm-tis-device"},

	// The general ones come last.
	{"-chardev *", "value", "", "a socket that the launcher has opened"},
	{"-chardev *", "fd", "", "the number of an inherited file, by the files' order"},
	{"-blockdev *", "filename", "/dev/fdset/*", "a descriptor of what is in a volume: of a device, or of a file that QEMU locks"},
	{"-device *", "write-cache", "", "a write cache where O_DIRECT works and for a seed, unless a cache mode is named"},
	{"-device *", "werror rerror", "stop", "an I/O error stops the guest before the guest sees it, unless the disk says otherwise"},
	{"-device *", "device_id", "", "the serial number, or without one the id that KubeVirt's guests see"},
	{"-device *", "num-queues num_queues", "", "one queue for each virtual CPU"},
	{"-device *", "queue-size virtqueue_size rx_queue_size tx_queue_size", "", "QEMU's own number, or KubeVirt's, written down because later releases have another"},
	{"-device *", "logical_block_size physical_block_size discard_granularity", "",
		"that of the volume's device, or of the file system that takes the guest's writes, unless the disk names it"},
	{"-device *", "iothread", "", "a thread of its own, or the next of those that disks share"},
	{"-device *", "iothread-vq-mapping", "", "all threads of the pool"},
	{"-device *", "host_uso guest_uso4 guest_uso6 host_tunnel host_tunnel_csum guest_tunnel guest_tunnel_csum", "",
		"QEMU would ask the host's kernel for the offload: without it the guest can run on any host"},
	{"-device *", "vectors", "", "two for each queue, and two more"},
	{"-device *", "mq", "", "one queue for each virtual CPU, 32 at most, and 96 of all virtio cards"},
	{"-device *", "host_mtu", "", "the MTU of the pod's link"},
	{"-device *", "romfile", "", "without a boot index no firmware of the card's own; AAVMF drives virtio cards itself"},
	{"-device *", "mac", "0a:58:*", "the pod's own: with a bridge the pod network may let only that MAC pass"},
	{"-device *", "multifunction", "", "function 0 tells of the slot's other functions"},
	{"-device *", "bus", "pci.*", nextPort},
	{"-device *", "addr", "0x0", nextPort},
	{"-device *", "bus addr", "", "a slot of the device's own, which stays free in a machine without it; for a transitional or a conventional " +
		"device the next such slot, or what its pciAddress says"},
	{"-device *", "chardev", "", "the launcher, or a program of the pod, is at the other end"},
	{"-device *", "audiodev", "", "where the sound goes"},
}

// nextPort is the rule of devices in root ports.
const nextPort = "the next port for PCI Express devices, or what a pciAddress says: " +
	"interfaces come first, then disks, then file systems"

// isName reports whether the property is the argument's own name.
func (p Property) isName() bool { return p.Name == "id" || p.Name == "node-name" }

// lastResorts are told of a property of which no rule and no source that is set says anything.
var lastResorts = []rule{
	{"-smp", "threads", "", "a core of arm64 has one"},
	{"-device *", "bootindex", "1", "without a boot order the first hard disk is booted"},
	{"-device *", "mac", "52:54:00:*", "made of the object's UID and the interface's name, so that it stays the same"},
	{"-device *", "driver", "", "QEMU's name for such a device"},
	{"*", "id node-name file backing drive netdev memdev", "", "the name by which QEMU's arguments and others know it"},
}

// rulesOf returns those of some rules that are about an argument.
func rulesOf(rules []rule, o observed) (of []rule) {
	names := []string{o.arg.Flag, o.arg.Flag + " " + o.kind(), o.arg.Flag + " " + o.id()}
	for _, r := range rules {
		if slices.ContainsFunc(names, func(name string) bool { return matches(r.of, name) }) {
			of = append(of, r)
		}
	}
	return of
}

// ofArgument returns what rules say of the argument itself, which may be several things.
func ofArgument(of []rule) (says []string) {
	for _, r := range of {
		if r.isAbout("there") {
			says = append(says, r.says)
		}
	}
	return says
}

// ofProperty returns what the first of the rules that is about a property says of it.
func ofProperty(of []rule, p Property) []string {
	if n := slices.IndexFunc(of, func(r rule) bool { return r.tells(p) }); n >= 0 {
		return []string{of[n].says}
	}
	return nil
}

// tells reports whether the rule, which is about the property's argument, is about the property.
func (r rule) tells(p Property) bool {
	return r.isAbout(cmp.Or(p.Name, "value")) && (r.value == "" || matches(r.value, plain(p.Value)))
}

func (r rule) isAbout(property string) bool {
	return slices.Contains(strings.Fields(r.properties), property)
}

// kind returns the argument's driver or type, or else its first property.
func (o observed) kind() string {
	for _, p := range o.properties {
		if p.Name == "driver" || p.Name == "type" || p.Name == "qom-type" {
			return plain(p.Value)
		}
	}
	if len(o.properties) == 0 {
		return ""
	}
	if first := o.properties[0]; first.Name == "" {
		return plain(first.Value)
	}
	return o.properties[0].Name
}

// matches reports whether a pattern, in which * stands for any text, matches a text.
func matches(pattern, text string) bool {
	first, rest, more := strings.Cut(pattern, "*")
	text, ok := strings.CutPrefix(text, first)
	if !ok || !more {
		return ok && text == ""
	}
	for n := 0; n <= len(text); n++ {
		if matches(rest, text[n:]) {
			return true
		}
	}
	return false
}
