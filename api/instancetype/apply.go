// Package instancetype applies sizes and preferences to a VirtualMachine's
// template. Everything in it is pure.
package instancetype

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// Apply writes the size into vmi, which has a template's annotations and spec and no defaults
// yet. Then it sets what the preference wants in fields that are still unset. Both may be nil.
// A field that both the template and the size set is an error, as in KubeVirt. Apply returns
// all such errors, Forbidden at the fields' paths below template, or one about CPUs that cannot be spread.
func Apply(size *v1beta1.VirtualMachineInstancetypeSpec, preference *v1beta1.VirtualMachinePreferenceSpec, vmi *v1.VirtualMachineInstance, template *field.Path) field.ErrorList {
	var errs field.ErrorList
	if size != nil {
		errs = both(size, vmi, template)
		if len(errs) > 0 {
			return errs
		}
		if errs = applySize(size, preference, vmi); len(errs) > 0 {
			return errs
		}
	}
	if preference != nil {
		applyPreference(preference, vmi)
	}
	return nil
}

// both returns errors for the fields that both the template and the size set.
func both(size *v1beta1.VirtualMachineInstancetypeSpec, vmi *v1.VirtualMachineInstance, template *field.Path) field.ErrorList {
	var errs field.ErrorList
	conflict := func(is bool, path *field.Path) {
		if is {
			errs = append(errs, field.Forbidden(path, "set by the instancetype that spec.instancetype names; leave it out of the template"))
		}
	}
	spec, path := &vmi.Spec, template.Child("spec")
	domain := path.Child("domain")
	if cpu := spec.Domain.CPU; cpu != nil {
		conflict(cpu.Sockets != 0, domain.Child("cpu", "sockets"))
		conflict(cpu.Cores != 0, domain.Child("cpu", "cores"))
		conflict(cpu.Threads != 0, domain.Child("cpu", "threads"))
		conflict(cpu.Model != "" && size.CPU.Model != "", domain.Child("cpu", "model"))
		conflict(cpu.DedicatedCPUPlacement && size.CPU.DedicatedCPUPlacement != nil, domain.Child("cpu", "dedicatedCpuPlacement"))
		conflict(cpu.IsolateEmulatorThread && size.CPU.IsolateEmulatorThread != nil, domain.Child("cpu", "isolateEmulatorThread"))
		conflict(cpu.NUMA != nil && size.CPU.NUMA != nil, domain.Child("cpu", "numa"))
		conflict(cpu.Realtime != nil && size.CPU.Realtime != nil, domain.Child("cpu", "realtime"))
		conflict(cpu.MaxSockets != 0 && size.CPU.MaxSockets != 0, domain.Child("cpu", "maxSockets"))
	}
	if memory := spec.Domain.Memory; memory != nil {
		conflict(memory.Guest != nil, domain.Child("memory", "guest"))
		conflict(memory.Hugepages != nil && size.Memory.Hugepages != nil, domain.Child("memory", "hugepages"))
		conflict(memory.MaxGuest != nil && size.Memory.MaxGuest != nil, domain.Child("memory", "maxGuest"))
	}
	resources := domain.Child("resources")
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		_, requested := spec.Domain.Resources.Requests[name]
		conflict(requested, resources.Child("requests", string(name)))
		_, limited := spec.Domain.Resources.Limits[name]
		conflict(limited, resources.Child("limits", string(name)))
	}
	// Sorted, so that the same conflicts have the same text each time.
	for _, name := range slices.Sorted(maps.Keys(size.NodeSelector)) {
		_, both := spec.NodeSelector[name]
		conflict(both, path.Child("nodeSelector").Key(name))
	}
	conflict(size.IOThreadsPolicy != nil && spec.Domain.IOThreadsPolicy != nil, domain.Child("ioThreadsPolicy"))
	conflict(size.IOThreads != nil && spec.Domain.IOThreads != nil, domain.Child("ioThreads"))
	conflict(size.SchedulerName != "" && spec.SchedulerName != "", path.Child("schedulerName"))
	for _, name := range slices.Sorted(maps.Keys(size.Annotations)) {
		other, both := vmi.Annotations[name]
		conflict(both && other != size.Annotations[name], template.Child("metadata", "annotations").Key(name))
	}
	return errs
}

func applySize(size *v1beta1.VirtualMachineInstancetypeSpec, preference *v1beta1.VirtualMachinePreferenceSpec, vmi *v1.VirtualMachineInstance) field.ErrorList {
	spec := &vmi.Spec
	if spec.Domain.CPU == nil {
		spec.Domain.CPU = &v1.CPU{}
	}
	if size.CPU.Model != "" {
		spec.Domain.CPU.Model = size.CPU.Model
	}
	errs := spread(size.CPU.Guest, preference, spec.Domain.CPU)
	if size.CPU.DedicatedCPUPlacement != nil {
		spec.Domain.CPU.DedicatedCPUPlacement = *size.CPU.DedicatedCPUPlacement
	}
	if size.CPU.NUMA != nil {
		spec.Domain.CPU.NUMA = size.CPU.NUMA.DeepCopy()
	}
	if size.CPU.Realtime != nil {
		spec.Domain.CPU.Realtime = size.CPU.Realtime.DeepCopy()
	}
	if size.CPU.IsolateEmulatorThread != nil {
		spec.Domain.CPU.IsolateEmulatorThread = *size.CPU.IsolateEmulatorThread
	}
	if size.CPU.MaxSockets != 0 {
		spec.Domain.CPU.MaxSockets = size.CPU.MaxSockets
		spec.Domain.CPU.LimitMaxSockets()
	}
	if spec.Domain.Memory == nil {
		spec.Domain.Memory = &v1.Memory{}
	}
	guest := size.Memory.Guest.DeepCopy()
	spec.Domain.Memory.Guest = &guest
	if size.Memory.Hugepages != nil {
		spec.Domain.Memory.Hugepages = size.Memory.Hugepages.DeepCopy()
	}
	if size.Memory.MaxGuest != nil {
		spec.Domain.Memory.MaxGuest = ptr.To(size.Memory.MaxGuest.DeepCopy())
	}
	if percent := size.Memory.OvercommitPercent; percent > 0 {
		if spec.Domain.Resources.Requests == nil {
			spec.Domain.Resources.Requests = v1.ResourceList{}
		}
		spec.Domain.Resources.Requests[corev1.ResourceMemory] = *resource.NewQuantity(request(guest.Value(), percent), resource.BinarySI)
	}
	spec.NodeSelector = merge(spec.NodeSelector, size.NodeSelector)
	preferCopy(&spec.Domain.IOThreadsPolicy, size.IOThreadsPolicy)
	if spec.Domain.IOThreads == nil {
		spec.Domain.IOThreads = size.IOThreads.DeepCopy()
	}
	if size.SchedulerName != "" {
		spec.SchedulerName = size.SchedulerName
	}
	vmi.Annotations = merge(vmi.Annotations, size.Annotations)
	return errs
}

// request returns what the pod requests of a guest's memory, in bytes: as many as in KubeVirt, which computes with 24 bits. So a VM that
// moves here from KubeVirt needs the same room.
func request(guest int64, overcommitPercent int32) int64 {
	return int64(float32(guest) * (1 - float32(overcommitPercent)/100))
}

// merge adds the entries of more that set lacks. It changes neither map.
func merge(set, more map[string]string) map[string]string {
	if len(more) == 0 {
		return set
	}
	merged := map[string]string{}
	for _, from := range []map[string]string{more, set} {
		for name, value := range from {
			merged[name] = value
		}
	}
	return merged
}

// spread lays out n CPUs as sockets, cores and threads, as the preference wants it.
func spread(n uint32, preference *v1beta1.VirtualMachinePreferenceSpec, cpu *v1.CPU) field.ErrorList {
	cpu.Sockets, cpu.Cores, cpu.Threads = 1, 1, 1
	topology, across, ratio := layout(preference)
	switch topology {
	case "cores", "preferCores":
		cpu.Cores = n
	case "threads", "preferThreads":
		cpu.Threads = n
	case "spread", "preferSpread":
		if n <= 1 {
			return nil
		}
		switch across {
		case "CoresThreads":
			cpu.Threads, cpu.Cores = ratio, n/ratio
		case "SocketsCoresThreads":
			cpu.Threads, cpu.Cores, cpu.Sockets = 2, ratio, n/(2*ratio)
		default:
			cpu.Cores, cpu.Sockets = ratio, n/ratio
		}
		if uint32(cpu.VCPUs()) != n {
			return field.ErrorList{field.Invalid(field.NewPath("instancetype", "spec", "cpu", "guest"), n, notDivisible(n, across, ratio))}
		}
	default:
		cpu.Sockets = n
	}
	return nil
}

// notDivisible returns KubeVirt's text about CPUs that cannot be spread as the preference wants it.
func notDivisible(n uint32, across string, ratio uint32) string {
	text := fmt.Sprintf("%d vCPUs provided by the instance type are not divisible by ", n)
	const ofRatio = "Spec.PreferSpreadSocketToCoreRatio or Spec.CPU.PreferSpreadOptions.Ratio of %d"
	switch across {
	case "CoresThreads":
		return text + fmt.Sprintf("the number of threads per core %d", ratio)
	case "SocketsCoresThreads":
		return text + fmt.Sprintf("the number of threads per core 2 and "+ofRatio, ratio)
	}
	return text + fmt.Sprintf("the "+ofRatio+" provided by the preference", ratio)
}

func layout(preference *v1beta1.VirtualMachinePreferenceSpec) (topology, across string, ratio uint32) {
	across, ratio = "SocketsCores", 2
	if preference == nil {
		return "sockets", across, ratio
	}
	if r := preference.PreferSpreadSocketToCoreRatio; r > 0 {
		ratio = r
	}
	if preference.CPU == nil {
		return "sockets", across, ratio
	}
	if o := preference.CPU.SpreadOptions; o != nil {
		if o.Across != "" {
			across = o.Across
		}
		if o.Ratio > 0 {
			ratio = o.Ratio
		}
	}
	return preference.CPU.PreferredCPUTopology, across, ratio
}
