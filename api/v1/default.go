package v1

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Default fills in what the spec leaves out, with KubeVirt's rules
// (pkg/defaults). It is idempotent, looks at nothing but the object, and
// never changes what is set. What it cannot know to be right it leaves to
// Validate.
func Default(vmi *VirtualMachineInstance) {
	spec := &vmi.Spec
	if spec.Architecture == "" {
		spec.Architecture = "amd64"
	}
	defaultDomain(&spec.Domain, vmi.UID)
	defaultVolumes(spec)
	defaultDisks(spec)
	defaultInterfaces(spec)
}

func defaultDomain(d *DomainSpec, uid types.UID) {
	if d.Machine == nil {
		d.Machine = &Machine{}
	}
	if d.Machine.Type == "" {
		d.Machine.Type = "q35"
	}
	if d.Firmware == nil {
		d.Firmware = &Firmware{}
	}
	// KubeVirt takes a random UUID here; the object's own UID is as unique
	// and needs no randomness.
	if d.Firmware.UUID == "" {
		d.Firmware.UUID = string(uid)
	}
	defaultResources(d)
	defaultCPU(d)
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
				c.Sockets = uint32(min(cpus.Value(), maxVCPUs))
				break
			}
		}
	}
	c.Cores, c.Sockets, c.Threads = max(c.Cores, 1), max(c.Sockets, 1), max(c.Threads, 1)
}

func defaultVolumes(spec *VirtualMachineInstanceSpec) {
	for i := range spec.Volumes {
		cd := spec.Volumes[i].ContainerDisk
		if cd == nil || cd.ImagePullPolicy != "" {
			continue
		}
		cd.ImagePullPolicy = corev1.PullIfNotPresent
		if !hasFixedTag(cd.Image) {
			cd.ImagePullPolicy = corev1.PullAlways
		}
	}
}

// hasFixedTag says whether an image reference has a digest, or a tag other
// than latest.
func hasFixedTag(image string) bool {
	if strings.Contains(image, "@") {
		return true
	}
	last := image[strings.LastIndex(image, "/")+1:]
	_, tag, tagged := strings.Cut(last, ":")
	return tagged && tag != "latest"
}

func defaultDisks(spec *VirtualMachineInstanceSpec) {
	devices := &spec.Domain.Devices
	shown := map[string]bool{}
	for _, d := range devices.Disks {
		shown[d.Name] = true
	}
	for _, v := range spec.Volumes {
		if !shown[v.Name] {
			devices.Disks = append(devices.Disks, Disk{Name: v.Name})
		}
	}
	for i := range devices.Disks {
		d := &devices.Disks[i]
		if d.Disk == nil && d.CDRom == nil && d.Lun == nil {
			d.Disk = &DiskTarget{}
		}
		if d.Disk != nil && d.Disk.Bus == "" {
			d.Disk.Bus = DiskBusSATA
		}
		if d.CDRom != nil {
			if d.CDRom.Bus == "" {
				d.CDRom.Bus = DiskBusSATA
			}
			if d.CDRom.ReadOnly == nil {
				d.CDRom.ReadOnly = ptr.To(true)
			}
		}
	}
}

func defaultInterfaces(spec *VirtualMachineInstanceSpec) {
	for i := range spec.Domain.Devices.Interfaces {
		nic := &spec.Domain.Devices.Interfaces[i]
		if nic.Model == "" {
			nic.Model = "virtio"
		}
		for j := range nic.Ports {
			if nic.Ports[j].Protocol == "" {
				nic.Ports[j].Protocol = "TCP"
			}
		}
	}
	for i := range spec.Networks {
		if pod := spec.Networks[i].Pod; pod != nil && pod.VMNetworkCIDR == "" {
			pod.VMNetworkCIDR = "10.0.2.0/24"
		}
	}
}
