package validation

import (
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func TestValidateFirmware(t *testing.T) {
	boot := func(arguments, kernel, initrd string) func(*spec) {
		return func(s *spec) {
			s.Domain.Firmware.KernelBoot = &v1.KernelBoot{KernelArgs: arguments,
				Container: &v1.KernelBootContainer{Image: "registry.example/kernel:v1", KernelPath: kernel, InitrdPath: initrd}}
		}
	}
	edits{
		"initrd without kernel": {boot("", "", "/boot/initrd"), ".container.kernelPath"},
		"space in the initrd":   {boot("", "/boot/vmlinuz", "/boot/a module"), ".container.initrdPath"},
		"comma in the kernel":   {boot("", "/boot/vmlinuz,1", ""), ".container.kernelPath"},
		"kernel arguments without kernel": {func(s *spec) {
			s.Domain.Firmware.KernelBoot = &v1.KernelBoot{KernelArgs: "quiet"}
		}, ".container"},
		"long kernel arguments":   {boot(strings.Repeat("x", maxKernelArgs+1), "/vmlinuz", ""), ".kernelArgs"},
		"NUL in kernel arguments": {boot("a\x00b", "/vmlinuz", ""), ".kernelArgs"},
	}.try(t, "spec.domain.firmware.kernelBoot")
	uefi := func(efi v1.EFI, features *v1.Features) func(*spec) {
		return func(s *spec) { s.Domain.Firmware.Bootloader, s.Domain.Features = &v1.Bootloader{EFI: &efi}, features }
	}
	smm := &v1.Features{SMM: &v1.FeatureState{}}
	edits{
		"UEFI":                    {uefi(v1.EFI{SecureBoot: ptr.To(false)}, nil), ""},
		"secure boot":             {uefi(v1.EFI{}, smm), ""},
		"secure boot without SMM": {uefi(v1.EFI{}, &v1.Features{}), ".firmware.bootloader.efi.secureBoot"},
		"secure boot with SMM off": {uefi(v1.EFI{SecureBoot: ptr.To(true)},
			&v1.Features{SMM: &v1.FeatureState{Enabled: ptr.To(false)}}), ".firmware.bootloader.efi.secureBoot"},
		"SMM with the BIOS":         {func(s *spec) { s.Domain.Features = smm }, ""},
		"variables that outlive it": {uefi(v1.EFI{Persistent: ptr.To(true)}, smm), ""},
		"UEFI without ACPI": {uefi(v1.EFI{SecureBoot: ptr.To(false)},
			&v1.Features{ACPI: v1.FeatureState{Enabled: ptr.To(false)}}), ".features.acpi.enabled"},
		"two firmwares": {func(s *spec) {
			s.Domain.Features, s.Domain.Firmware.Bootloader = smm, &v1.Bootloader{BIOS: &v1.BIOS{}, EFI: &v1.EFI{}}
		}, ".firmware.bootloader"},
	}.try(t, "spec.domain")
}
