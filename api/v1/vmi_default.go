package v1

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Default fills in what the spec leaves out, with KubeVirt's rules (pkg/defaults). It is
// idempotent, looks at nothing but the object, and never changes a field that is set. If it
// cannot know the right value, it leaves the field to validation.
func Default(vmi *VirtualMachineInstance) {
	spec := &vmi.Spec
	if spec.Architecture == "" {
		spec.Architecture = spec.Domain.Machine.Architecture()
	}
	AttachDevices(spec)
	if spec.Architecture == ARM64 {
		defaultARM64(spec)
	}
	defaultDomain(spec, vmi.UID)
	defaultVolumes(spec)
	defaultDisks(spec)
	defaultInterfaces(spec)
	defaultProbes(spec)
}

// AttachDevices adds the devices that a spec implies and does not list: a disk for each volume without a disk or file
// system, but for those with ACPI tables, and the tablet of autoattachInputDevice. It leaves the buses unset, so that a
// preference can set them. The interface of a spec without networks comes later: the KubeVirt object's configuration
// decides on its binding (ApplyClusterDefaults).
func AttachDevices(spec *VirtualMachineInstanceSpec) {
	devices := &spec.Domain.Devices
	for _, v := range spec.Volumes {
		if !spec.IsFilesystem(v.Name) && !spec.IsACPITable(v.Name) &&
			!slices.ContainsFunc(devices.Disks, func(d Disk) bool { return d.Name == v.Name }) {
			devices.Disks = append(devices.Disks, Disk{Name: v.Name})
		}
	}
	if ptr.Deref(devices.AutoattachInputDevice, false) && len(devices.Inputs) == 0 {
		devices.Inputs = []Input{{Name: "default-0"}}
	}
}

func defaultDomain(spec *VirtualMachineInstanceSpec, uid types.UID) {
	d := &spec.Domain
	if d.Machine == nil {
		d.Machine = &Machine{}
	}
	if d.Machine.Type == "" {
		d.Machine.Type = cmp.Or(NewestMachineType(spec.Architecture), NewestMachineType(AMD64))
	}
	defaultFirmware(d, uid)
	defaultHyperv(d.Features)
	defaultEVMCS(d)
	defaultResources(d)
	defaultCPU(d)
	defaultDevices(&d.Devices)
}

func defaultResources(d *DomainSpec) {
	limits, requests := d.Resources.Limits, d.Resources.Requests
	if limit, ok := limits[corev1.ResourceCPU]; ok {
		if _, ok := requests[corev1.ResourceCPU]; !ok {
			if requests == nil {
				requests = ResourceList{}
			}
			requests[corev1.ResourceCPU] = limit
			d.Resources.Requests = requests
		}
	}
	if d.Memory == nil {
		d.Memory = &Memory{}
	}
	if d.Memory.Guest != nil {
		return
	}
	for _, list := range []ResourceList{requests, limits} {
		if memory, ok := list[corev1.ResourceMemory]; ok {
			d.Memory.Guest = ptr.To(memory.DeepCopy())
			return
		}
	}
	d.Memory.Guest = d.Memory.Hugepages.defaultMemory()
}

func defaultCPU(d *DomainSpec) {
	if d.CPU == nil {
		d.CPU = &CPU{}
	}
	c := d.CPU
	if c.Model == "" {
		c.Model = "host-model"
	}
	if c.Cores == 0 && c.Sockets == 0 && c.Threads == 0 {
		c.Sockets = 1
		for _, list := range []ResourceList{d.Resources.Limits, d.Resources.Requests} {
			// Value rounds up: 1500m needs two CPUs.
			if cpus, ok := list[corev1.ResourceCPU]; ok && cpus.Value() > 0 {
				c.Sockets = uint32(min(cpus.Value(), MaxVCPUs))
				break
			}
		}
	}
	c.Cores, c.Sockets, c.Threads = max(c.Cores, 1), max(c.Sockets, 1), max(c.Threads, 1)
}
