package validation

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func validateACPITables(spec *v1.VirtualMachineInstanceSpec, domain *field.Path) field.ErrorList {
	f, path := spec.Domain.Firmware, domain.Child("firmware", "acpi")
	if f == nil || f.ACPI == nil {
		return nil
	}
	if *f.ACPI == (v1.ACPITables{}) {
		return field.ErrorList{field.Required(path, "name the volume of a table, in slicNameRef or msdmNameRef")}
	}
	var errs field.ErrorList
	if withoutACPI(&spec.Domain) {
		errs = append(errs, field.Forbidden(path, "features.acpi.enabled is false: the guest has no ACPI tables"))
	}
	for _, t := range spec.ACPITables() {
		i := slices.IndexFunc(spec.Volumes, func(v v1.Volume) bool { return v.Name == t.Volume })
		switch p := path.Child(t.Field); {
		case i < 0:
			errs = append(errs, field.NotFound(p, t.Volume+" (no volume of this name in spec.volumes)"))
		case spec.Volumes[i].Secret == nil:
			errs = append(errs, field.Invalid(p, t.Volume, "the volume must be of kind secret"))
		}
	}
	return errs
}

// smbiosText is a text of SMBIOS. An empty one is QEMU's own.
var smbiosText = regexp.MustCompile(`^[ -~]{0,256}$`)

func validateChassis(c *v1.Chassis, path *field.Path) field.ErrorList {
	if c == nil {
		return nil
	}
	var errs field.ErrorList
	for _, f := range []struct{ name, text string }{{"asset", c.Asset}, {"manufacturer", c.Manufacturer},
		{"serial", c.Serial}, {"sku", c.SKU}, {"version", c.Version}} {
		if !smbiosText.MatchString(f.text) {
			errs = append(errs, field.Invalid(path.Child(f.name), f.text, "must be at most 256 printable characters of ASCII"))
		}
	}
	return errs
}

func validateFirmware(f *v1.Firmware, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !machineUUID.MatchString(f.UUID) {
		errs = append(errs, field.Invalid(p.Child("uuid"), f.UUID,
			"must be a UUID such as 5d307ca9-b3ef-428c-8861-06e72d69f223"))
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
func validateUEFI(d *v1.DomainSpec, architecture string, p *field.Path) field.ErrorList {
	efi := d.UEFI()
	if efi == nil {
		return nil
	}
	var errs field.ErrorList
	bootloader := p.Child("firmware", "bootloader")
	if d.Firmware.Bootloader.BIOS != nil {
		errs = append(errs, field.Invalid(bootloader, "bios and efi",
			"a machine has one firmware: set bios or efi, not both"))
	}
	features := d.Features
	if efi.Secure() && (features == nil || features.SMM == nil || !ptr.Deref(features.SMM.Enabled, true)) {
		errs = append(errs, field.Invalid(bootloader.Child("efi", "secureBoot"), true,
			"secure boot needs system management mode: set "+p.Child("features", "smm", "enabled").String()+
				" to true, or secureBoot to false"))
	}
	if features != nil && !ptr.Deref(features.ACPI.Enabled, true) {
		what := "UEFI needs ACPI: leave ACPI on"
		if architecture != v1.ARM64 {
			what += ", or take " + bootloader.Child("bios").String()
		}
		errs = append(errs, field.Invalid(p.Child("features", "acpi", "enabled"), false, what))
	}
	return errs
}

// maxKernelArgs is one less than COMMAND_LINE_SIZE of Linux on x86.
const maxKernelArgs = 2047

func validateKernelBoot(k *v1.KernelBoot, p *field.Path) field.ErrorList {
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
		errs = append(errs, field.Required(container.Child("kernelPath"),
			"name the kernel in the container image; QEMU takes no initrd without a kernel"))
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
