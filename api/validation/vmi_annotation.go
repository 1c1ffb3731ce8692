package validation

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// unsupportedAnnotations returns KubeVirt's other annotations that change the guest, or run a third party's program
// beside it. To ignore them would give another guest than was asked for. The schema cannot see annotations.
func unsupportedAnnotations() []unsupportedAnnotation {
	return []unsupportedAnnotation{
		{"hooks.kubevirt.io/hookSidecars", noHooks},
		{"kubevirt.io/ignitiondata", notSupported},
		{"kubevirt.io/placePCIDevicesOnRootComplex", notSupported},
	}
}

type unsupportedAnnotation struct{ name, why string }

// noHooks names the fields that do what the commonest hooks do. A hook changes libvirt's XML.
const noHooks = "a hook changes libvirt's domain XML, and there is none here. Some fields do what common hooks do: " +
	"the SMBIOS serial number is domain.firmware.serial, and the SMBIOS vendor, product, version, SKU and family are " +
	"smbios in the KubeVirt object; the CPU model is domain.cpu.model; the boot order is bootOrder of disks and " +
	"interfaces; a disk's serial number is its serial; the kernel's arguments are " +
	"domain.firmware.kernelBoot.kernelArgs. CPU features are domain.cpu.features. A boot " +
	"menu and disk tuning have no field yet"

func validateAnnotations(annotations map[string]string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, a := range unsupportedAnnotations() {
		if _, ok := annotations[a.name]; ok {
			errs = append(errs, field.Forbidden(path.Key(a.name), a.why))
		}
	}
	return errs
}
