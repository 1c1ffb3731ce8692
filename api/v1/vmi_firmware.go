package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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

// Secure reports whether secure boot is on.
func (e *EFI) Secure() bool { return ptr.Deref(e.SecureBoot, true) }

// UEFI returns the firmware of a machine that starts with UEFI, or nil.
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

// KernelContainer returns the image that the VMI boots a kernel from, or nil.
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
