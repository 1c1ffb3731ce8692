package resolve

import (
	"cmp"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
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
