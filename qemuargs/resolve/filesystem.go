package resolve

import (
	"slices"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

const fileSystemList = "spec.domain.devices.filesystems"

// fileSystemQueue is the number of entries of a file system's queue, KubeVirt's.
const fileSystemQueue = 1024

// fileSystems resolves the file systems. They come after the disks, so that one more file system moves no disk.
func fileSystems(spec *v1.VirtualMachineInstanceSpec, host Host, m *qemuargs.Machine, slots *allocator, why *Decisions) {
	domain := &spec.Domain
	for i, f := range domain.Devices.Filesystems {
		volume := slices.IndexFunc(spec.Volumes, func(v v1.Volume) bool { return v.Name == f.Name })
		by := entry{to: why, list: "fileSystems", name: f.Name, field: fileSystemList, index: i, volume: volume}
		by.add("", ".name .virtiofs", "each file system shows the files of the volume of its name")
		by.add("name", ".name volume.name", "")
		by.add("queueSize", "", "as in KubeVirt")
		by.add("socket", ".name", "where the file system's container listens")
		by.add("pci", interfaces+"[*].model "+diskList+"[*].disk.bus "+pinFields, "the next port for PCI Express devices: interfaces come first, then disks, then file systems")
		m.FileSystems = append(m.FileSystems, qemuargs.FileSystem{Name: f.Name, QueueSize: fileSystemQueue,
			Socket: layout.Below(host.Root, layout.FileSystemSocket(f.Name)), PCI: slots.plug()})
	}
	why.add("fileSystems", fileSystemList, "")
	// The kernel books a page of shared memory on the container that touches it first, and virtiofsd's container has little memory of its own where
	// each container has a limit (controllers/vmi).
	why.add("preallocMemory", "spec.domain.cpu.dedicatedCpuPlacement spec.domain.memory.hugepages.pageSize", "QEMU takes the memory of a guest with file systems and CPUs of its own at its start; it always does so with huge pages")
	m.PreallocMemory = len(m.FileSystems) > 0 && domain.CPU.Dedicated() && m.HugePageBytes == 0
}
