package libvirt

import (
	"strconv"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Filesystem is files of the host that virtiofsd serves. KubeVirt starts virtiofsd itself, in a container.
type Filesystem struct {
	Type       string           `xml:"type,attr"`       // always mount
	AccessMode string           `xml:"accessmode,attr"` // always passthrough
	Driver     FilesystemDriver `xml:"driver"`
	Source     FilesystemSocket `xml:"source"`
	Target     FilesystemTarget `xml:"target"`
	Alias      Alias            `xml:"alias"`
	Address    *Address         `xml:"address"`
}

// FilesystemDriver is what serves the files.
type FilesystemDriver struct {
	Type  string `xml:"type,attr"` // always virtiofs
	Queue string `xml:"queue,attr"`
}

// FilesystemSocket is where virtiofsd listens.
type FilesystemSocket struct {
	Socket string `xml:"socket,attr"`
}

// FilesystemTarget is the name by which the guest mounts the files.
type FilesystemTarget struct {
	Dir string `xml:"dir,attr"`
}

func filesystem(f qemuargs.FileSystem) Filesystem {
	return Filesystem{Type: "mount", AccessMode: "passthrough", Driver: FilesystemDriver{Type: "virtiofs", Queue: strconv.Itoa(f.QueueSize)},
		Source: FilesystemSocket{f.Socket}, Target: FilesystemTarget{f.Name}, Alias: alias(qemuargs.FileSystemID(f.Name)), Address: pci(&f.PCI)}
}

// shared is memory that virtiofsd can map, for a machine with file systems.
func (b *Backing) shared(m *qemuargs.Machine) *Backing {
	if len(m.FileSystems) == 0 {
		return b
	}
	if b == nil {
		b = &Backing{}
	}
	b.Source, b.Access = &Source{"memfd"}, &Mode{"shared"}
	if m.PreallocMemory {
		b.Allocation = &Mode{"immediate"}
	}
	return b
}
