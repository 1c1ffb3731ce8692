package resolve

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Machine resolves a VMI on a host. It defaults and validates a copy of the VMI again, so that
// an invalid VMI that got past the controller has no effect. It returns all errors at once,
// each with the path of its field.
func Machine(vmi *v1.VirtualMachineInstance, host Host) (*qemuargs.Machine, field.ErrorList) {
	return machine(vmi, host, nil)
}

// Explained is Machine, and says how each part of the Machine was decided.
func Explained(vmi *v1.VirtualMachineInstance, host Host) (*qemuargs.Machine, *Decisions, field.ErrorList) {
	why := &Decisions{byPart: map[string]Decision{}}
	m, errs := machine(vmi, host, why)
	return m, why, errs
}

func machine(vmi *v1.VirtualMachineInstance, host Host, why *Decisions) (*qemuargs.Machine, field.ErrorList) {
	vmi = vmi.DeepCopy()
	v1.Default(vmi)
	if errs := v1.Validate(vmi); len(errs) > 0 {
		return nil, errs
	}
	var errs field.ErrorList
	domain, path := &vmi.Spec.Domain, field.NewPath("spec", "domain")
	machineType, board, err := machineType(domain.Machine.Type, boardNames[vmi.Spec.Architecture], host.QEMUVersion, why)
	if err != nil {
		errs = append(errs, field.Invalid(path.Child("machine", "type"), domain.Machine.Type, err.Error()))
	}
	m, err := base(vmi, host, why)
	if err != nil {
		errs = append(errs, field.Invalid(path.Child("cpu", "model"), domain.CPU.Model, err.Error()))
	}
	m.Type = machineType
	qemu, _ := release(host.QEMUVersion) // of which the machine type says what is wrong
	features, required, featureErrs := cpuFeatures(domain.CPU, notEmulated(domain, host.Accelerator), qemu, path.Child("cpu", "features"), why)
	flags := slices.Concat(features, m.CPU.Flags, tscFrequency(domain, host, why))
	m.CPU.Flags, m.CPU.Required, errs = append(hostFlags(domain.CPU, host, flags, why), flags...), required, append(errs, featureErrs...)
	if err := clockOffset(domain.Clock, host, &m.Clock, path.Child("clock"), why); err != nil {
		errs = append(errs, err)
	}
	if err := kernelWithoutHyperV(m.CPU.Flags, host, path); err != nil {
		errs = append(errs, err)
	}
	if err := fitsAddresses(domain, m, path.Child("memory")); err != nil {
		errs = append(errs, err)
	}
	devices := &domain.Devices
	var kernelErr *field.Error
	if m.Kernel, kernelErr = kernel(vmi, host, path.Child("firmware", "kernelBoot", "container"), why); kernelErr != nil {
		errs = append(errs, kernelErr)
	}
	slots := &allocator{why: why, pinned: pinsOf(devices)}
	// Interfaces first: guests name interfaces by slot, and a disk that is added later must not
	// rename them.
	m.NICs = nics(vmi, host, board, slots, why)
	errs = append(errs, missingCards(vmi, host)...)
	errs = append(errs, disks(vmi, host, m, slots, why)...)
	fileSystems(&vmi.Spec, host, m, slots, why)
	boot(devices, m.Disks, why)
	attach(vmi, host, m, slots, why)
	if m.RootPorts, err = slots.rootPorts(m.MemoryBytes); err != nil {
		errs = append(errs, field.Invalid(path.Child("devices"), "", err.Error()))
	}
	errs = append(errs, slots.giveWay(m, path.Child("devices"))...)
	if len(errs) > 0 {
		return nil, errs
	}
	return m, nil
}

// base is the machine without its devices. The error is that of the CPU model.
func base(vmi *v1.VirtualMachineInstance, host Host, why *Decisions) (*qemuargs.Machine, error) {
	domain := &vmi.Spec.Domain
	cpu, err := cpu(domain, host, why)
	m := &qemuargs.Machine{
		Version:       qemuargs.Version,
		Arch:          qemuargs.Arch(vmi.Spec.Architecture),
		Name:          vmi.Namespace + "_" + vmi.Name,
		UUID:          domain.Firmware.UUID,
		Accelerator:   host.Accelerator,
		NoACPI:        domain.Features != nil && domain.Features.ACPI.Enabled != nil && !*domain.Features.ACPI.Enabled,
		CPU:           cpu,
		MemoryBytes:   guestMemory(domain.Memory.Guest.Value(), why),
		HugePageBytes: hugePages(domain.Memory, why),
		Memory:        memoryPlaces(domain.Memory, why),
		SMBIOS:        smbios(domain.Firmware, host, why),
		Chassis:       chassis(domain.Chassis, why),
		NoPCIHole64:   noPCIHole64(vmi, why),
		ACPITables:    acpiTables(&vmi.Spec, host, why),
		EndOnReboot:   endOnReboot(domain.RebootPolicy, why),
		Clock:         clock(domain.Clock, why),
		MonitorObject: monitorObject(host.QEMUVersion, why),
		SerialBIOS:    serialBIOS(domain.Firmware, why),
		Firmware:      firmware(domain, vmi.Spec.Architecture, host, why),
		SMM:           smm(domain.Features, why),
		TPM:           tpm(domain, vmi.Spec.Architecture, host, why),
		// As libvirt does for KubeVirt. SeaBIOS then sets up no disk that it does not boot from.
		Boot: qemuargs.BootStrict,
	}
	m.NUMA = numa(domain, host, m.MemoryBytes, why)
	why.add("arch", "spec.architecture", "")
	if vmi.Spec.Architecture == v1.ARM64 {
		virt(m, why)
		m.NoPCIHole64 = false
	}
	why.add("name", "metadata.namespace metadata.name", "")
	why.add("uuid", "spec.domain.firmware.uuid", "")
	why.add("accelerator", "host.accelerator", "")
	why.add("noACPI", "spec.domain.features.acpi.enabled", "on unless it is turned off")
	why.add("boot", "", "the firmware tries no device without a boot index")
	return m, err
}

func enabled(b *bool) bool { return b == nil || *b }

// guestMemory rounds up to whole MiB, QEMU's unit for -m.
func guestMemory(bytes int64, why *Decisions) int64 {
	const mib = 1 << 20
	why.add("memoryBytes", "spec.domain.memory.guest", "in whole MiB")
	return (bytes + mib - 1) / mib * mib
}
