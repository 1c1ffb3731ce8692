package v1

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Warnings returns what a VirtualMachineInstance's spec asks for and gets otherwise, or not at all. Each text names the field, and is short: the API
// server cuts what is longer than 120 characters if there is much. path is that of the spec.
func Warnings(spec *VirtualMachineInstanceSpec, path *field.Path) []string {
	domain := path.Child("domain")
	return slices.Concat(
		warnMachineType(spec.Domain.Machine, domain.Child("machine", "type")),
		warnCPUModel(spec.Domain.CPU, spec.Architecture, domain.Child("cpu", "model")),
		warnResources(&spec.Domain, domain.Child("resources")),
		warnDisks(spec.Domain.Devices.Disks, domain.Child("devices", "disks")),
		warnCloudInit(spec.Volumes, path.Child("volumes")),
	)
}

// KubeVirtWarnings returns what a KubeVirt's spec asks for and gets otherwise, or not at all.
func KubeVirtWarnings(spec *KubeVirtSpec) (out []string) {
	config, path := &spec.Configuration, field.NewPath("spec", "configuration")
	out = warnMachineType(&Machine{Type: config.MachineType}, path.Child("machineType"))
	if a := config.ArchitectureConfiguration; a != nil && a.Amd64 != nil {
		out = append(out, warnMachineType(&Machine{Type: a.Amd64.MachineType}, path.Child("architectureConfiguration", "amd64", "machineType"))...)
	}
	fields, err := IneffectiveFields(spec)
	if err != nil {
		return out // the status says so
	}
	for _, f := range fields {
		out = append(out, fmt.Sprintf("%s has no effect: %s", f.Field, f.Why))
	}
	return out
}
