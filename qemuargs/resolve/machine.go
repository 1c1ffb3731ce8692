package resolve

import (
	"fmt"
	"net"
	"strconv"
	"strings"

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
	machineType, err := machineType(domain.Machine.Type, host.QEMUVersion)
	if err != nil {
		errs = append(errs, field.Invalid(path.Child("machine", "type"), domain.Machine.Type, err.Error()))
	}
	m := &qemuargs.Machine{
		Version:     qemuargs.Version,
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
	m.SerialBIOS = serialBIOS(domain.Firmware)
	var kernelErr *field.Error
	if m.Kernel, kernelErr = kernel(vmi, host, path.Child("firmware", "kernelBoot", "container")); kernelErr != nil {
		errs = append(errs, kernelErr)
	}
	slots := &allocator{}
	// Interfaces first: guests name them by slot, and a disk that is added
	// later must not rename them.
	m.NICs = nics(vmi, host, slots)
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

// cpuModel: without libvirt there is nobody who computes host-model, so it
// means all that the accelerator offers.
func cpuModel(model string, accelerator qemuargs.Accelerator) string {
	switch model {
	case "host-model", "host-passthrough":
		if accelerator == qemuargs.KVM {
			return "host"
		}
		return "max"
	}
	return model
}

// machineType makes q35 a versioned type, which is that of QEMU's own release,
// and refuses one that this QEMU does not have yet.
func machineType(wanted, qemuVersion string) (string, error) {
	major, minor, err := release(qemuVersion)
	if err != nil {
		return "", err
	}
	if wanted == "q35" {
		return fmt.Sprintf("pc-q35-%d.%d", major, minor), nil
	}
	wantMajor, wantMinor, err := release(strings.TrimPrefix(wanted, "pc-q35-"))
	if err != nil {
		return "", err
	}
	if wantMajor > major || wantMajor == major && wantMinor > minor {
		return "", fmt.Errorf("is newer than this node's QEMU %s", qemuVersion)
	}
	return wanted, nil
}

func release(version string) (major, minor int, err error) {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return 0, 0, fmt.Errorf("no QEMU release: %q", version)
	}
	if major, err = strconv.Atoi(parts[0]); err == nil {
		minor, err = strconv.Atoi(parts[1])
	}
	if err != nil {
		return 0, 0, fmt.Errorf("no QEMU release: %q", version)
	}
	return major, minor, nil
}

var nicDrivers = map[string]string{
	"virtio":  "virtio-net-pci-non-transitional",
	"e1000":   "e1000",
	"e1000e":  "e1000e",
	"rtl8139": "rtl8139",
}

// maxQueues of an interface: each is a file descriptor that is handed to the
// launcher, and a message carries at most 64.
const maxQueues = 32

func nics(vmi *v1.VirtualMachineInstance, host Host, slots *allocator) []qemuargs.NIC {
	var out []qemuargs.NIC
	for _, nic := range vmi.Spec.Domain.Devices.Interfaces {
		n := qemuargs.NIC{
			Name: nic.Name, Driver: nicDrivers[nic.Model], MAC: MAC(vmi, nic, host.NICs[nic.Name]),
			MTU: host.NICs[nic.Name].MTU, Queues: Queues(vmi, nic), BootIndex: ptr.Deref(nic.BootOrder, 0),
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
