package instancetype

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// Lacks returns the requirements of a preference that a VM does not meet, in KubeVirt's words. expanded is the VM with its size and the
// preference applied; size and preference may be nil.
func Lacks(expanded *v1.VirtualMachine, size *v1beta1.VirtualMachineInstancetypeSpec, preference *v1beta1.VirtualMachinePreferenceSpec) field.ErrorList {
	if preference == nil || preference.Requirements == nil {
		return nil
	}
	vmi := &v1.VirtualMachineInstance{Spec: *expanded.Spec.Template.Spec.DeepCopy()}
	v1.Default(vmi)
	r, spec, path := preference.Requirements, &vmi.Spec, template().Child("spec")
	domain := path.Child("domain")
	by, at := "VirtualMachine", func(own *field.Path) *field.Path { return own }
	if size != nil {
		by, at = "instance type", func(*field.Path) *field.Path { return field.NewPath("spec", "instancetype") }
	}
	var errs field.ErrorList
	if n := provided(size, spec); r.CPU != nil && n < int64(r.CPU.Guest) {
		text := fmt.Sprintf("insufficient CPU resources of %d vCPU provided by %s, preference requires %d vCPU", n, by, r.CPU.Guest)
		if size == nil {
			text += " provided as " + as(preference)
		}
		errs = append(errs, field.Invalid(at(domain.Child("cpu")), n, text))
	}
	guest := spec.Domain.Memory.Guest
	if guest == nil {
		guest = resource.NewQuantity(0, resource.BinarySI)
	}
	if r.Memory != nil && guest.Cmp(r.Memory.Guest) < 0 {
		errs = append(errs, field.Invalid(at(domain.Child("memory")), guest.String(),
			fmt.Sprintf("insufficient Memory resources of %s provided by %s, preference requires %s", guest, by, &r.Memory.Guest)))
	}
	if r.Architecture != "" && spec.Architecture != r.Architecture {
		errs = append(errs, field.Invalid(path.Child("architecture"), spec.Architecture,
			fmt.Sprintf("preference requires architecture %s but %s is being requested", r.Architecture, spec.Architecture)))
	}
	return errs
}

// provided returns the number of a guest's CPUs. With a size it is the number that the size states: this may be 0,
// although the guest then has one CPU.
func provided(size *v1beta1.VirtualMachineInstancetypeSpec, spec *v1.VirtualMachineInstanceSpec) int64 {
	if size != nil {
		return int64(size.CPU.Guest)
	}
	return spec.Domain.CPU.VCPUs()
}

// as returns KubeVirt's word for the CPUs that a preference wants.
func as(preference *v1beta1.VirtualMachinePreferenceSpec) string {
	topology, across, _ := layout(preference)
	switch topology {
	case "cores", "preferCores":
		return "cores"
	case "threads", "preferThreads":
		return "threads"
	case "spread", "preferSpread":
		return across
	case "any", "preferAny":
		return "cores, sockets and threads"
	}
	return "sockets"
}
