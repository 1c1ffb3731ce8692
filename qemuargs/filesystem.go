package qemuargs

// FileSystem is a virtio file system: files of the host that the guest mounts by a name. The program virtiofsd serves it beside QEMU,
// and reads and writes the guest's memory itself. QEMU inherits a socket to virtiofsd.
type FileSystem struct {
	// Name of the file system, by which the guest mounts it. Virtio has room for 36 characters.
	Name string `json:"name"`
	// QueueSize is the number of entries of the queue for requests.
	QueueSize int `json:"queueSize"`
	// Socket is where virtiofsd listens. The launcher connects, and QEMU gets the connection.
	Socket string     `json:"socket"`
	PCI    PCIAddress `json:"pci"`
}

// FileSystemID is the QEMU device id of a file system.
func FileSystemID(name string) string { return "fs-" + name }

type fileSystemProps struct {
	Driver  string `json:"driver" rule:"a virtio file system"`
	ID      string `json:"id" from:"name"`
	Chardev string `json:"chardev" from:"name" rule:"virtiofsd is at the other end"`
	Tag     string `json:"tag" from:"name"`
	Queue   int    `json:"queue-size" from:"queueSize"`
	pciPlace
}

// args are the file system's; file is the descriptor of the connection to virtiofsd.
func (f FileSystem) args(file int) []Arg {
	of, chardev := Part{Field: "fileSystems", Name: f.Name}, "chr-"+FileSystemID(f.Name)
	connection := socket(chardev, file)
	for i := range connection {
		if connection[i].Key == "id" {
			connection[i].From = "name"
		}
	}
	return []Arg{
		{Flag: "-chardev", Value: connection, Of: of},
		{Flag: "-device", Value: fileSystemProps{Driver: "vhost-user-fs-pci", ID: FileSystemID(f.Name), Chardev: chardev, Tag: f.Name, Queue: f.QueueSize, pciPlace: f.PCI.place()}, Of: of},
	}
}
