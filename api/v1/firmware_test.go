package v1

import (
	"strings"
	"testing"

	"k8s.io/utils/ptr"
)

func TestValidateFirmware(t *testing.T) {
	boot := func(arguments, kernel, initrd string) func(*spec) {
		return func(s *spec) {
			s.Domain.Firmware.KernelBoot = &KernelBoot{KernelArgs: arguments,
				Container: &KernelBootContainer{Image: "registry.example/kernel:v1", KernelPath: kernel, InitrdPath: initrd}}
		}
	}
	edits{
		"initrd without kernel":           {boot("", "", "/boot/initrd"), ".container.kernelPath"},
		"space in the initrd":             {boot("", "/boot/vmlinuz", "/boot/a module"), ".container.initrdPath"},
		"comma in the kernel":             {boot("", "/boot/vmlinuz,1", ""), ".container.kernelPath"},
		"kernel arguments without kernel": {func(s *spec) { s.Domain.Firmware.KernelBoot = &KernelBoot{KernelArgs: "quiet"} }, ".container"},
		"long kernel arguments":           {boot(strings.Repeat("x", maxKernelArgs+1), "/vmlinuz", ""), ".kernelArgs"},
		"NUL in kernel arguments":         {boot("a\x00b", "/vmlinuz", ""), ".kernelArgs"},
	}.try(t, "spec.domain.firmware.kernelBoot")
	uefi := func(efi EFI, features *Features) func(*spec) {
		return func(s *spec) { s.Domain.Firmware.Bootloader, s.Domain.Features = &Bootloader{EFI: &efi}, features }
	}
	smm := &Features{SMM: &FeatureState{}}
	edits{
		"UEFI":                      {uefi(EFI{SecureBoot: ptr.To(false)}, nil), ""},
		"secure boot":               {uefi(EFI{}, smm), ""},
		"secure boot without SMM":   {uefi(EFI{}, &Features{}), ".firmware.bootloader.efi.secureBoot"},
		"secure boot with SMM off":  {uefi(EFI{SecureBoot: ptr.To(true)}, &Features{SMM: &FeatureState{Enabled: ptr.To(false)}}), ".firmware.bootloader.efi.secureBoot"},
		"SMM with the BIOS":         {func(s *spec) { s.Domain.Features = smm }, ""},
		"variables that outlive it": {uefi(EFI{Persistent: ptr.To(true)}, smm), ""},
		"UEFI without ACPI":         {uefi(EFI{SecureBoot: ptr.To(false)}, &Features{ACPI: FeatureState{Enabled: ptr.To(false)}}), ".features.acpi.enabled"},
		"two firmwares": {func(s *spec) {
			s.Domain.Features, s.Domain.Firmware.Bootloader = smm, &Bootloader{BIOS: &BIOS{}, EFI: &EFI{}}
		}, ".firmware.bootloader"},
	}.try(t, "spec.domain")
}
