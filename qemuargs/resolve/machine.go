package resolve

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Machine resolves a VMI on a host. It defaults and validates a copy of the VMI again, so that
// an invalid VMI that got past the controller has no effect. It returns all errors at once,
// each with the path of its field.
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
	model, err := cpuModel(domain.CPU.Model, host.Accelerator)
	if err != nil {
		errs = append(errs, field.Invalid(path.Child("cpu", "model"), domain.CPU.Model, err.Error()))
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
			Model:   model,
			Sockets: domain.CPU.Sockets, Cores: domain.CPU.Cores, Threads: domain.CPU.Threads,
		},
		MemoryBytes: guestMemory(domain.Memory.Guest.Value()),
		// KubeVirt's strings: guests and their software look for them.
		SMBIOS: qemuargs.SMBIOS{Manufacturer: "KubeVirt", Product: "None", Family: "KubeVirt", Serial: domain.Firmware.Serial},
		// As libvirt does for KubeVirt. SeaBIOS then sets up no disk that it does not boot from.
		Boot: qemuargs.BootStrict,
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
	// Interfaces first: guests name interfaces by slot, and a disk that is added later must not
	// rename them.
	m.NICs = nics(vmi, host, board, slots)
	errs = append(errs, disks(vmi, host, m, slots)...)
	boot(devices, m.Disks)
	attach(devices, host, m, slots)
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
