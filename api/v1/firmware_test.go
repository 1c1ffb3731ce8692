package v1

import (
	"strings"
	"testing"
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
}
