package validation

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// Warnings returns what a VirtualMachineInstance's spec asks for and gets otherwise, or not at all. Each text names the
// field, and is short: the API server cuts what is longer than 120 characters if there is much. path is that of the
// spec.
func Warnings(spec *v1.VirtualMachineInstanceSpec, path *field.Path) []string {
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
func KubeVirtWarnings(spec *v1.KubeVirtSpec) (out []string) {
	config, path := &spec.Configuration, field.NewPath("spec", "configuration")
	out = warnMachineType(&v1.Machine{Type: config.MachineType}, path.Child("machineType"))
	if a := config.ArchitectureConfiguration; a != nil && a.Amd64 != nil {
		out = append(out, warnMachineType(&v1.Machine{Type: a.Amd64.MachineType},
			path.Child("architectureConfiguration", "amd64", "machineType"))...)
	}
	fields, err := v1.IneffectiveFields(spec)
	if err != nil {
		return out // the status says so
	}
	for _, f := range fields {
		out = append(out, fmt.Sprintf("%s has no effect: %s", f.Field, f.Why))
	}
	return out
}

// LabelWarnings returns a warning for each label of a template that its VirtualMachineInstances do not get.
func LabelWarnings(labels map[string]string, path *field.Path) (out []string) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if v1.ReservedLabel(key) {
			out = append(out, path.Key(key).String()+" is left out: only Kubeqemu's components write it")
		}
	}
	return out
}

// AnnotationWarnings returns a warning for each annotation of a VirtualMachineInstance that has no effect, or does not
// reach its launcher pod.
func AnnotationWarnings(annotations map[string]string, path *field.Path) []string {
	out := reservedWarnings(annotations, path)
	if _, ok := annotations[libvirtLogFiltersAnnotation]; ok {
		out = append(out, path.Key(libvirtLogFiltersAnnotation).String()+" has no effect: there is no libvirt. "+
			"The KubeVirt object's configuration.developerConfiguration.logVerbosity sets how much the launcher logs")
	}
	return out
}

// libvirtLogFiltersAnnotation says what libvirt logs.
const libvirtLogFiltersAnnotation = "kubevirt.io/libvirt-log-filters"

// reservedWarnings returns a warning for each annotation that a launcher pod does not get. kubectl gives every object
// annotations of its own, and nobody expects them in the pod. Networks say what Multus is told.
func reservedWarnings(annotations map[string]string, path *field.Path) (out []string) {
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if by := v1.ReservedAnnotation(key); by != "" && by != "kubectl" {
			out = append(out, path.Key(key).String()+" does not reach the launcher pod: "+by+" would obey it")
		}
	}
	return out
}
