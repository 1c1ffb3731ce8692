package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kubeqemu/kubeqemu/qemuargs/tool/manifest"
)

// This file has the causes that changing one field at a time does not show.

// hint adds the architecture as a cause of -machine: a guest of another architecture has another board, with nothing
// in common. It also adds fields that cannot be changed alone: the system management mode and secure boot, which
// depend on each other; the size of a huge page, because the guest's memory must be a multiple of it; and evmcs,
// which turns vmx on again.
func (t *trials) hint() {
	const pageSize, secureBoot = "spec.domain.memory.hugepages.pageSize", "spec.domain.firmware.bootloader.efi.secureBoot"
	const evmcs = "spec.domain.features.hyperv.evmcs.enabled"
	for key, o := range t.before {
		values := o.values()
		if _, ok := values["hugetlbsize"]; ok {
			t.add(inArgument(key, "hugetlbsize"), pageSize)
		}
		if _, ok := values["vmx"]; ok && isSet(t.tree, evmcs) {
			t.add(inArgument(key, "vmx"), evmcs)
		}
		if o.id() == "pflash0.file" {
			t.add(inArgument(key, "filename"), secureBoot)
		}
		if strings.Contains(key, " -machine ") {
			t.add(inArgument(key, ""), "spec.architecture")
			t.add(inArgument(key, "smm"), "spec.domain.features.smm.enabled")
		}
	}
}

func (t *trials) add(key, path string) {
	if by := (cause{path: path, unset: !isSet(t.tree, path)}); !slices.Contains(t.causes[key], by) {
		t.causes[key] = append(t.causes[key], by)
	}
}

// isAbout returns the fields of the VMI that a fact of the host is about, where the fact is what somebody has found in
// an image.
func isAbout(i manifest.Instance, fact string) (fields []string) {
	const boot = "spec.domain.firmware.kernelBoot.container."
	switch fact {
	case "kernel.path":
		return []string{boot + "image", boot + "kernelPath"}
	case "kernel.initrd":
		return []string{boot + "image", boot + "initrdPath"}
	}
	for n, v := range i.Spec.Volumes {
		if v.ContainerDisk != nil && fact == "containerDisks["+v.Name+"].path" {
			disk := fmt.Sprintf("spec.volumes[%d].containerDisk.", n)
			if fields = append(fields, disk+"image"); v.ContainerDisk.Path != "" {
				fields = append(fields, disk+"path")
			}
		}
	}
	return fields
}
