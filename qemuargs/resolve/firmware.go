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
func smbios(firmware *v1.Firmware, host Host, why *Decisions) qemuargs.SMBIOS {
	const known = "KubeVirt's text, unless the cluster has another: guests and their software look for it"
	why.add("smbios", "", known)
	why.add("smbios.manufacturer", "host.smbios.manufacturer", known)
	why.add("smbios.product", "host.smbios.product", known)
	why.add("smbios.family", "host.smbios.family", known)
	why.add("smbios.version", "host.smbios.version", "")
	why.add("smbios.sku", "host.smbios.sku", "")
	why.add("smbios.serial", "spec.domain.firmware.serial", "")
	return qemuargs.SMBIOS{
		Manufacturer: cmp.Or(host.SMBIOS.Manufacturer, "KubeVirt"),
		Product:      cmp.Or(host.SMBIOS.Product, "None"),
		Family:       cmp.Or(host.SMBIOS.Family, "KubeVirt"),
		Version:      host.SMBIOS.Version,
		SKU:          host.SMBIOS.SKU,
		Serial:       firmware.Serial,
	}
}

func serialBIOS(f *v1.Firmware, why *Decisions) bool {
	why.add("serialBIOS", "spec.domain.firmware.bootloader.bios.useSerial", "the BIOS writes to the serial port where there are no graphics")
	return f.Bootloader != nil && f.Bootloader.BIOS != nil && ptr.Deref(f.Bootloader.BIOS.UseSerial, false)
}

// OVMF's files by Debian's names. Debian's build for secure boot does not start without SMM, so a machine without secure
// boot has the other build.
const (
	ovmfCode       = "OVMF_CODE_4M.fd"
	ovmfVariables  = "OVMF_VARS_4M.fd"
	ovmfSecureCode = "OVMF_CODE_4M.secboot.fd"
	ovmfMicrosoft  = "OVMF_VARS_4M.ms.fd" // with Microsoft's keys
)

// firmware is nil for a machine with SeaBIOS.
func firmware(domain *v1.DomainSpec, architecture string, host Host, why *Decisions) *qemuargs.Firmware {
	const field = "spec.domain.firmware.bootloader.efi"
	why.add("firmware", field, "the BIOS unless UEFI is named")
	efi := domain.UEFI()
	if efi == nil {
		return nil
	}
	folder, code, variables := cmp.Or(host.FirmwareDir, layout.FirmwareDir), ovmfCode, ovmfVariables
	if efi.Secure() {
		code, variables = ovmfSecureCode, ovmfMicrosoft
	}
	const build = field + ".secureBoot host.firmwareDir"
	why.add("firmware.code", build, "OVMF has a build for secure boot")
	why.add("firmware.variables", field, "")
	why.add("firmware.variables.template", build, "for secure boot, with Microsoft's keys")
	why.add("firmware.variables.path", field+".persistent", "the launcher's copy of the template")
	why.add("firmware.variables.inState", field+".persistent", "")
	why.add("firmware.secureBoot", field+".secureBoot", "on unless it is turned off")
	kept, persistent := layout.Variables, domain.PersistentVariables()
	if persistent {
		kept = layout.StateVariables(efi.Secure())
	}
	f := &qemuargs.Firmware{Code: path.Join(folder, code), SecureBoot: efi.Secure(),
		Variables: qemuargs.Variables{Path: layout.Below(host.Root, kept), Template: path.Join(folder, variables), InState: persistent}}
	if architecture == v1.ARM64 {
		aavmf(f, host, why)
	}
	return f
}

func smm(features *v1.Features, why *Decisions) qemuargs.Switch {
	why.add("smm", "spec.domain.features.smm.enabled", "QEMU's choice unless it is named")
	switch {
	case features == nil || features.SMM == nil:
		return ""
	case enabled(features.SMM.Enabled):
		return qemuargs.On
	}
	return qemuargs.Off
}

// foundByLauncher is why a path is a fact.
const foundByLauncher = "where the launcher has found the file in the container image"

func kernel(vmi *v1.VirtualMachineInstance, host Host, path *field.Path, why *Decisions) (*qemuargs.Kernel, *field.Error) {
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
	const boot = "spec.domain.firmware.kernelBoot."
	why.add("kernel", boot+"container", "")
	why.add("kernel.path", boot+"container.image "+boot+"container.kernelPath host.kernel.path", foundByLauncher)
	why.add("kernel.initrd", boot+"container.image "+boot+"container.initrdPath host.kernel.initrd", foundByLauncher)
	why.add("kernel.args", boot+"kernelArgs", "")
	return &qemuargs.Kernel{Path: host.Kernel.Path, Initrd: host.Kernel.Initrd, Args: vmi.Spec.Domain.Firmware.KernelBoot.KernelArgs}, nil
}
