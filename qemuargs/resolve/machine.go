package resolve

import (
	"net"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Machine resolves a VMI on a host. The VMI is defaulted and validated again
// on a copy, so that one that got past the controller changes nothing. All
// errors are returned at once, each with the path of the field it is about.
func Machine(vmi *v1.VirtualMachineInstance, host Host) (*qemuargs.Machine, field.ErrorList) {
	vmi = vmi.DeepCopy()
	v1.Default(vmi)
	if errs := v1.Validate(vmi); len(errs) > 0 {
		return nil, errs
	}
	var errs field.ErrorList
	domain, path := &vmi.Spec.Domain, field.NewPath("spec", "domain")
	machineType, board, err := machineType(domain.Machine.Type, host.QEMUVersion)
	if err != nil {
		errs = append(errs, field.Invalid(path.Child("machine", "type"), domain.Machine.Type, err.Error()))
	}
	m := &qemuargs.Machine{
		Version:     qemuargs.Version,
		Arch:        qemuargs.AMD64,
		Name:        vmi.Namespace + "_" + vmi.Name,
		UUID:        domain.Firmware.UUID,
		Type:        machineType,
		Accelerator: host.Accelerator,
		NoACPI:      domain.Features != nil && domain.Features.ACPI.Enabled != nil && !*domain.Features.ACPI.Enabled,
		CPU: qemuargs.CPU{
			Model:   cpuModel(domain.CPU.Model, host.Accelerator),
			Sockets: domain.CPU.Sockets, Cores: domain.CPU.Cores, Threads: domain.CPU.Threads,
		},
		MemoryBytes: guestMemory(domain.Memory.Guest.Value()),
		// KubeVirt's strings: guests and their software look for them.
		SMBIOS: qemuargs.SMBIOS{Manufacturer: "KubeVirt", Product: "None", Family: "KubeVirt", Serial: domain.Firmware.Serial},
	}
	devices := &domain.Devices
	m.CPU.Flags = cpuFlags(domain.Clock, host.Accelerator)
	m.Clock = clock(domain.Clock)
	m.MonitorObject = monitorObject(host.QEMUVersion)
	m.SerialBIOS = serialBIOS(domain.Firmware)
	var kernelErr *field.Error
	if m.Kernel, kernelErr = kernel(vmi, host, path.Child("firmware", "kernelBoot", "container")); kernelErr != nil {
		errs = append(errs, kernelErr)
	}
	slots := &allocator{}
	// Interfaces first: guests name them by slot, and a disk that is added
	// later must not rename them.
	m.NICs = nics(vmi, host, board, slots)
	errs = append(errs, disks(vmi, host, m, slots)...)
	m.Boot = boot(devices, m.Disks)
	attach(devices, m, slots)
	if m.RootPorts, err = slots.rootPorts(m.MemoryBytes); err != nil {
		errs = append(errs, field.Invalid(path.Child("devices"), "", err.Error()))
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return m, nil
}

func enabled(b *bool) bool { return b == nil || *b }

// guestMemory rounds up to whole MiB, QEMU's unit for -m.
func guestMemory(bytes int64) int64 {
	const mib = 1 << 20
	return (bytes + mib - 1) / mib * mib
}

var nicDrivers = map[string]string{
	"virtio":  "virtio-net-pci-non-transitional",
	"e1000":   "e1000",
	"e1000e":  "e1000e",
	"rtl8139": "rtl8139",
}

// queueSize is the number of entries of a virtio queue: QEMU's default of types
// since 5.0, written down because 10.0 makes it 1024.
const queueSize = 256

// maxQueues of an interface: each is a file descriptor that is handed to the
// launcher, and a message brings 253 at most (launcher/control).
const maxQueues = 32

func nics(vmi *v1.VirtualMachineInstance, host Host, board version, slots *allocator) []qemuargs.NIC {
	var out []qemuargs.NIC
	for _, nic := range vmi.Spec.Domain.Devices.Interfaces {
		n := qemuargs.NIC{
			Name: nic.Name, Driver: nicDrivers[nic.Model], MAC: MAC(vmi, nic, host.NICs[nic.Name]),
			MTU: host.NICs[nic.Name].MTU, Queues: Queues(vmi, nic), BootIndex: ptr.Deref(nic.BootOrder, 0),
		}
		if n.IsVirtio() {
			n.QueueSize = queueSize
			n.NoUSO, n.NoTunnels = !board.before(version82), !board.before(version102)
		}
		switch nic.Model {
		case "e1000", "rtl8139":
			n.PCI = slots.integrate()
		default:
			n.PCI = slots.plug()
		}
		out = append(out, n)
	}
	return out
}

// Queues is the number of an interface's queues.
func Queues(vmi *v1.VirtualMachineInstance, nic v1.Interface) int {
	domain := &vmi.Spec.Domain
	if nic.Model != "virtio" || !ptr.Deref(domain.Devices.NetworkInterfaceMultiQueue, false) {
		return 1
	}
	return int(min(domain.CPU.VCPUs(), maxQueues))
}

// MAC is the hardware address of an interface: the spec's; with the bridge
// binding the pod interface's own, since networks may let only that one pass;
// else one under QEMU's prefix made from the object's UID, so that it stays the same.
func MAC(vmi *v1.VirtualMachineInstance, nic v1.Interface, host NIC) string {
	if mac, err := net.ParseMAC(nic.MacAddress); err == nil {
		return mac.String()
	}
	if nic.Bridge != nil && host.MAC != "" {
		return host.MAC
	}
	return v1.MAC(vmi.UID, nic.Name)
}
