package qemuargs

// FileSystem is a virtio file system: files of the host that the guest mounts by a name. The program virtiofsd serves
// it beside QEMU, and reads and writes the guest's memory itself. QEMU inherits a socket to virtiofsd.
type FileSystem struct {
	// Name of the file system, by which the guest mounts it. Virtio has room for 36 characters.
	Name string `json:"name"`
	// QueueSize is the number of entries of the queue for requests.
	QueueSize int `json:"queueSize"`
	// Socket is where virtiofsd listens. The launcher connects, and QEMU gets the connection.
	Socket string     `json:"socket"`
	PCI    PCIAddress `json:"pci"`
}

// FileSystemID returns the QEMU device id of a file system.
func FileSystemID(name string) string { return "fs-" + name }

type fileSystemProps struct {
	Driver  string `json:"driver"`
	ID      string `json:"id"`
	Chardev string `json:"chardev"`
	Tag     string `json:"tag"`
	Queue   int    `json:"queue-size"`
	pciPlace
}

// inherits returns the connection to virtiofsd, and the one that tells virtiofsd's container of QEMU's end.
func (f FileSystem) inherits() []Inherited {
	return []Inherited{{Kind: InheritedFileSystem, Name: f.Name}, {Kind: InheritedLifeline, Name: f.Name}}
}

func (f FileSystem) args(files files) []Arg {
	chardev := "chr-" + FileSystemID(f.Name)
	connection := socket(chardev, files.descriptor(Inherited{Kind: InheritedFileSystem, Name: f.Name}))
	return []Arg{
		{Flag: "-chardev", Value: connection},
		{Flag: "-device", Value: fileSystemProps{Driver: "vhost-user-fs-pci", ID: FileSystemID(f.Name), Chardev: chardev, Tag: f.Name, Queue: f.QueueSize, pciPlace: f.PCI.place()}},
	}
}
