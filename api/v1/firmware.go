package v1

import (
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// Firmware is the machine's identity, which SMBIOS shows to the guest, and what the machine
// boots.
type Firmware struct {
	// UUID of the machine (QEMU -uuid). Default: the object's UID.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$`
	UUID string `json:"uuid,omitempty"`
	// Serial number of the machine (SMBIOS type 1).
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_.+-]*$`
	Serial string `json:"serial,omitempty"`
	// Bootloader is the firmware. Default: bios.
	// +optional
	Bootloader *Bootloader `json:"bootloader,omitempty"`
	// KernelBoot starts a kernel directly, without a boot loader on a disk.
	// +optional
	KernelBoot *KernelBoot `json:"kernelBoot,omitempty"`

	// ACPI tables of licenses of Windows.
	// +optional
	ACPI *ACPITables `json:"acpi,omitempty"`
}

// Bootloader is the firmware that the machine starts with: one of the two.
//
// +kubebuilder:validation:XValidation:rule="!has(self.bios) || !has(self.efi)",message="a machine has one firmware: set bios or efi, not both"
type Bootloader struct {
	// BIOS is SeaBIOS.
	// +optional
	BIOS *BIOS `json:"bios,omitempty"`
	// EFI is UEFI: OVMF.
	// +optional
	EFI *EFI `json:"efi,omitempty"`
}

// EFI is UEFI: OVMF. The guest's variables outlive a reboot of the guest, and move with it to another node.
type EFI struct {
	// SecureBoot lets the firmware start only what is signed by a key that it knows. Microsoft's
	// keys are enrolled. Secure boot needs features.smm. Default: true.
	// +optional
	SecureBoot *bool `json:"secureBoot,omitempty"`
	// Persistent keeps the guest's variables on a claim that belongs to the VirtualMachine, so that they outlive the
	// VirtualMachineInstance. The claim of a VirtualMachineInstance without a VirtualMachine goes with it. Default: false.
	// +optional
	Persistent *bool `json:"persistent,omitempty"`
}

// Secure says whether secure boot is on.
func (e *EFI) Secure() bool { return ptr.Deref(e.SecureBoot, true) }

// UEFI is the firmware of a machine that starts with UEFI, or nil.
func (d *DomainSpec) UEFI() *EFI {
	if d.Firmware == nil || d.Firmware.Bootloader == nil {
		return nil
	}
	return d.Firmware.Bootloader.EFI
}

// BIOS is SeaBIOS.
type BIOS struct {
	// UseSerial lets the BIOS write to the first serial port too (QEMU
	// -machine graphics=off). Default: false.
	// +optional
	UseSerial *bool `json:"useSerial,omitempty"`
}

// KernelBoot starts a kernel directly (QEMU -kernel, -initrd, -append).
type KernelBoot struct {
	// KernelArgs is the kernel's command line, 2047 bytes at most.
	// +optional
	// +kubebuilder:validation:MaxLength=2047
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",message="must not contain NUL"
	KernelArgs string `json:"kernelArgs,omitempty"`
	// Container is the container image with kernel and initial RAM disk.
	// +optional
	Container *KernelBootContainer `json:"container,omitempty"`
}

// KernelBootContainer is a container image that holds a kernel.
type KernelBootContainer struct {
	// Image is the container image's reference.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Image string `json:"image"`
	// ImagePullSecret is a Secret of the namespace with registry credentials.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ImagePullSecret string `json:"imagePullSecret,omitempty"`
	// ImagePullPolicy as for containers. Default: Always for the tag latest
	// or none, else IfNotPresent.
	// +optional
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// KernelPath is the kernel's absolute path in the image, without commas and spaces.
	// Required.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	KernelPath string `json:"kernelPath,omitempty"`
	// InitrdPath is the initial RAM disk's, like kernelPath.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	InitrdPath string `json:"initrdPath,omitempty"`
}

// KernelContainer is the image that the VMI boots a kernel from, or nil.
func (vmi *VirtualMachineInstance) KernelContainer() *KernelBootContainer {
	if f := vmi.Spec.Domain.Firmware; f != nil && f.KernelBoot != nil {
		return f.KernelBoot.Container
	}
	return nil
}

func defaultFirmware(d *DomainSpec, uid types.UID) {
	if d.Firmware == nil {
		d.Firmware = &Firmware{}
	}
	// KubeVirt takes a random UUID here; the object's own UID is as unique
	// and needs no randomness.
	if d.Firmware.UUID == "" {
		d.Firmware.UUID = string(uid)
	}
	if k := d.Firmware.KernelBoot; k != nil && k.Container != nil && k.Container.ImagePullPolicy == "" {
		k.Container.ImagePullPolicy = pullPolicy(k.Container.Image)
	}
}

func validateFirmware(f *Firmware, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !machineUUID.MatchString(f.UUID) {
		errs = append(errs, field.Invalid(p.Child("uuid"), f.UUID, "must be a UUID such as 5d307ca9-b3ef-428c-8861-06e72d69f223"))
	}
	if !serialNumber.MatchString(f.Serial) {
		errs = append(errs, field.Invalid(p.Child("serial"), f.Serial, serialRule))
	}
	if k := f.KernelBoot; k != nil {
		errs = append(errs, validateKernelBoot(k, p.Child("kernelBoot"))...)
	}
	return errs
}

// validateUEFI looks at the firmware and at the features that it needs.
func validateUEFI(d *DomainSpec, architecture string, p *field.Path) field.ErrorList {
	efi := d.UEFI()
	if efi == nil {
		return nil
	}
	var errs field.ErrorList
	bootloader := p.Child("firmware", "bootloader")
	if d.Firmware.Bootloader.BIOS != nil {
		errs = append(errs, field.Invalid(bootloader, "bios and efi", "a machine has one firmware: set bios or efi, not both"))
	}
	features := d.Features
	if efi.Secure() && (features == nil || features.SMM == nil || !ptr.Deref(features.SMM.Enabled, true)) {
		errs = append(errs, field.Invalid(bootloader.Child("efi", "secureBoot"), true,
			"secure boot needs system management mode: set "+p.Child("features", "smm", "enabled").String()+" to true, or secureBoot to false"))
	}
	if features != nil && !ptr.Deref(features.ACPI.Enabled, true) {
		what := "UEFI needs ACPI: leave ACPI on"
		if architecture != ARM64 {
			what += ", or take " + bootloader.Child("bios").String()
		}
		errs = append(errs, field.Invalid(p.Child("features", "acpi", "enabled"), false, what))
	}
	return errs
}

// maxKernelArgs is one less than COMMAND_LINE_SIZE of Linux on x86.
const maxKernelArgs = 2047

func validateKernelBoot(k *KernelBoot, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(k.KernelArgs) > maxKernelArgs {
		errs = append(errs, field.TooLong(p.Child("kernelArgs"), "", maxKernelArgs))
	}
	if strings.ContainsRune(k.KernelArgs, 0) {
		errs = append(errs, field.Invalid(p.Child("kernelArgs"), "", "must not contain NUL"))
	}
	c, container := k.Container, p.Child("container")
	if c == nil {
		return append(errs, field.Required(container, "name the container image that holds the kernel"))
	}
	if c.Image == "" {
		errs = append(errs, field.Required(container.Child("image"), "name the container image that holds the kernel"))
	}
	if c.KernelPath == "" {
		errs = append(errs, field.Required(container.Child("kernelPath"), "name the kernel in the container image; QEMU takes no initrd without a kernel"))
	}
	for name, file := range map[string]string{"kernelPath": c.KernelPath, "initrdPath": c.InitrdPath} {
		if file != "" && !path.IsAbs(file) {
			errs = append(errs, field.Invalid(container.Child(name), file, "must be an absolute path in the container image"))
		}
		// With a Multiboot kernel QEMU takes -initrd for a list of modules, split at
		// commas, each with arguments after a space (hw/i386/multiboot.c): it would
		// open files of the launcher's.
		if strings.ContainsAny(file, ", \x00") {
			errs = append(errs, field.Invalid(container.Child(name), file, "must not contain a comma, a space or NUL"))
		}
	}
	return errs
}
