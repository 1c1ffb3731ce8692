package resolve

import (
	"cmp"
	"path"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// smbios takes the cluster's texts, and KubeVirt's where the cluster has none: guests and their
// software look for these.
func smbios(firmware *v1.Firmware, host Host) qemuargs.SMBIOS {
	return qemuargs.SMBIOS{
		Manufacturer: cmp.Or(host.SMBIOS.Manufacturer, "KubeVirt"),
		Product:      cmp.Or(host.SMBIOS.Product, "None"),
		Family:       cmp.Or(host.SMBIOS.Family, "KubeVirt"),
		Version:      host.SMBIOS.Version,
		SKU:          host.SMBIOS.SKU,
		Serial:       firmware.Serial,
	}
}

func serialBIOS(f *v1.Firmware) bool {
	return f.Bootloader != nil && f.Bootloader.BIOS != nil && ptr.Deref(f.Bootloader.BIOS.UseSerial, false)
}

// OVMF's files by Debian's names. Debian's build for secure boot does not start without SMM, so a machine without
// secure boot has the other build.
const (
	ovmfCode       = "OVMF_CODE_4M.fd"
	ovmfVariables  = "OVMF_VARS_4M.fd"
	ovmfSecureCode = "OVMF_CODE_4M.secboot.fd"
	ovmfMicrosoft  = "OVMF_VARS_4M.ms.fd" // with Microsoft's keys
)

// firmware returns nil for a machine with SeaBIOS.
func firmware(domain *v1.DomainSpec, architecture string, host Host) *qemuargs.Firmware {
	efi := domain.UEFI()
	if efi == nil {
		return nil
	}
	folder, code, variables := cmp.Or(host.FirmwareDir, layout.FirmwareDir), ovmfCode, ovmfVariables
	if efi.Secure() {
		code, variables = ovmfSecureCode, ovmfMicrosoft
	}
	kept, persistent := layout.Variables, domain.PersistentVariables()
	if persistent {
		kept = layout.StateVariables(efi.Secure())
	}
	f := &qemuargs.Firmware{Code: path.Join(folder, code), SecureBoot: efi.Secure(),
		Variables: qemuargs.Variables{Path: layout.Below(host.Root, kept), Template: path.Join(folder, variables), InState: persistent}}
	if architecture == v1.ARM64 {
		aavmf(f, host)
	}
	return f
}

func smm(features *v1.Features) qemuargs.Switch {
	switch {
	case features == nil || features.SMM == nil:
		return ""
	case enabled(features.SMM.Enabled):
		return qemuargs.On
	}
	return qemuargs.Off
}

func kernel(vmi *v1.VirtualMachineInstance, host Host, path *field.Path) (*qemuargs.Kernel, *field.Error) {
	container := vmi.KernelContainer()
	if container == nil {
		return nil, nil
	}
	switch {
	case host.Kernel == nil:
		return nil, field.Invalid(path, container.Image, "the launcher has not inspected it")
	case host.Kernel.Error != "":
		return nil, field.Invalid(path, container.Image, host.Kernel.Error)
	}
	return &qemuargs.Kernel{Path: host.Kernel.Path, Initrd: host.Kernel.Initrd, Args: vmi.Spec.Domain.Firmware.KernelBoot.KernelArgs}, nil
}
