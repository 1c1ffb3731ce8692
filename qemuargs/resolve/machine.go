package resolve

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/api/validation"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Machine resolves a VMI on a host. It defaults and validates a copy of the VMI again, so that
// an invalid VMI that got past the controller has no effect. It returns all errors at once,
// each with the path of its field.
func Machine(vmi *v1.VirtualMachineInstance, host Host) (*qemuargs.Machine, field.ErrorList) {
	return machine(vmi, host, nil)
}

// machine returns the Machine, given a running one or nil.
func machine(vmi *v1.VirtualMachineInstance, host Host, running *qemuargs.Machine) (*qemuargs.Machine,
	field.ErrorList) {
	vmi = vmi.DeepCopy()
	v1.Default(vmi)
	if errs := validation.ValidateVirtualMachineInstance(vmi); len(errs) > 0 {
		return nil, errs
	}
	var errs field.ErrorList
	domain, path := &vmi.Spec.Domain, field.NewPath("spec", "domain")
	machineType, board, err := machineType(domain.Machine.Type, boardNames[vmi.Spec.Architecture], host.QEMUVersion)
	if err != nil {
		errs = append(errs, field.Invalid(path.Child("machine", "type"), domain.Machine.Type, err.Error()))
	}
	m, err := base(vmi, host)
	if err != nil {
		errs = append(errs, field.Invalid(path.Child("cpu", "model"), domain.CPU.Model, err.Error()))
	}
	m.Type = machineType
	qemu, _ := release(host.QEMUVersion) // of which the machine type says what is wrong
	features, required, featureErrs := cpuFeatures(domain.CPU, notEmulated(domain, host.Accelerator), qemu, path.Child("cpu", "features"))
	flags := slices.Concat(features, m.CPU.Flags, tscFrequency(domain, host))
	m.CPU.Flags, m.CPU.Required, errs = append(hostFlags(domain.CPU, host, flags), flags...), required, append(errs, featureErrs...)
	if err := clockOffset(domain.Clock, host, &m.Clock, path.Child("clock")); err != nil {
		errs = append(errs, err)
	}
	if err := kernelWithoutHyperV(m.CPU.Flags, host, path); err != nil {
		errs = append(errs, err)
	}
	if err := fitsAddresses(domain, m, path.Child("memory")); err != nil {
		errs = append(errs, err)
	}
	var kernelErr *field.Error
	if m.Kernel, kernelErr = kernel(vmi, host, path.Child("firmware", "kernelBoot", "container")); kernelErr != nil {
		errs = append(errs, kernelErr)
	}
	b := &build{vmi: vmi, host: host, board: board, m: m, slots: slotsOf(domain, running), running: running}
	for _, device := range devices {
		device(b)
	}
	errs = append(errs, b.errs...)
	if running != nil {
		err = b.keep()
	} else {
		m.RootPorts, err = b.slots.rootPorts(m.MemoryBytes)
	}
	if err != nil {
		errs = append(errs, field.Invalid(path.Child("devices"), "", err.Error()))
	}
	errs = append(errs, b.slots.giveWay(m, path.Child("devices"))...)
	if len(errs) > 0 {
		return nil, errs
	}
	return m, nil
}

// build is a Machine in the making: each device adds itself, and its errors.
type build struct {
	vmi   *v1.VirtualMachineInstance
	host  Host
	board version // of the machine type
	m     *qemuargs.Machine
	slots *allocator
	errs  field.ErrorList
	// running is the machine that this one is to follow; nil for a machine that is to be started.
	running *qemuargs.Machine
}

func (b *build) devices() *v1.Devices { return &b.vmi.Spec.Domain.Devices }

// devices is the list of all devices, in the order in which they get their places. Interfaces come first: guests name
// interfaces by slot, and a disk that is added later must not rename them. File systems come after the disks for the
// same reason. The inputs' USB controller has a port for each disk on it, and the keyboard is there for the graphics.
var devices = [...]func(*build){nics, disks, fileSystems, boot, tpm, rng, balloon, watchdog, panicDevices, sound, inputs,
	serial, graphics, agent}

// base returns the machine without its devices. The error is that of the CPU model.
func base(vmi *v1.VirtualMachineInstance, host Host) (*qemuargs.Machine, error) {
	domain := &vmi.Spec.Domain
	cpu, err := cpu(domain, host)
	m := &qemuargs.Machine{
		Version:       qemuargs.Version,
		Arch:          qemuargs.Arch(vmi.Spec.Architecture),
		Name:          vmi.Namespace + "_" + vmi.Name,
		UUID:          domain.Firmware.UUID,
		Accelerator:   host.Accelerator,
		NoACPI:        domain.Features != nil && domain.Features.ACPI.Enabled != nil && !*domain.Features.ACPI.Enabled,
		CPU:           cpu,
		MemoryBytes:   guestMemory(domain.Memory.Guest.Value()),
		HugePageBytes: hugePages(domain.Memory),
		Memory:        memoryPlaces(domain.Memory),
		SMBIOS:        smbios(domain.Firmware, host),
		Chassis:       chassis(domain.Chassis),
		NoPCIHole64:   noPCIHole64(vmi),
		ACPITables:    acpiTables(&vmi.Spec, host),
		EndOnReboot:   endOnReboot(domain.RebootPolicy),
		Clock:         clock(domain.Clock),
		MonitorObject: monitorObject(host.QEMUVersion),
		SerialBIOS:    serialBIOS(domain.Firmware),
		Firmware:      firmware(domain, vmi.Spec.Architecture, host),
		SMM:           smm(domain.Features),
		// As libvirt does for KubeVirt. SeaBIOS then sets up no disk that it does not boot from.
		Boot: qemuargs.BootStrict,
	}
	m.NUMA = numa(domain, host, m.MemoryBytes)
	if vmi.Spec.Architecture == v1.ARM64 {
		virt(m)
		m.NoPCIHole64 = false
	}
	return m, err
}

func enabled(b *bool) bool { return b == nil || *b }

// guestMemory rounds up to whole MiB, QEMU's unit for -m.
func guestMemory(bytes int64) int64 {
	const mib = 1 << 20
	return (bytes + mib - 1) / mib * mib
}
