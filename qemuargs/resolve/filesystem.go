package resolve

import (
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// fileSystemQueue is the number of entries of a file system's queue, KubeVirt's.
const fileSystemQueue = 1024

// fileSystems adds the file systems.
func fileSystems(b *build) {
	for _, f := range b.devices().Filesystems {
		b.m.FileSystems = append(b.m.FileSystems, qemuargs.FileSystem{Name: f.Name, QueueSize: fileSystemQueue,
			Socket: layout.Below(b.host.Root, layout.FileSystemSocket(f.Name)), PCI: b.slots.plug(partOf("fileSystems", f.Name))})
	}
	// The kernel books a page of shared memory on the container that touches it first, and virtiofsd's container has
	// little memory of its own where each container has a limit (controllers/vmi).
	b.m.PreallocMemory = len(b.m.FileSystems) > 0 && b.vmi.Spec.Domain.CPU.Dedicated() && b.m.HugePageBytes == 0
}
