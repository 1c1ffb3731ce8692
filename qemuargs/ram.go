package qemuargs

type memoryProps struct {
	QOMType string `json:"qom-type" from:"hugePageBytes" rule:"memory of QEMU's own process"`
	ID      string `json:"id" rule:"the name that migration knows"`
	Size    int64  `json:"size" from:"memoryBytes"`
}

// hugeMemoryProps is memory of huge pages. The kernel gives QEMU the pages through a file in memory that has no name: no
// file system of huge pages is mounted.
type hugeMemoryProps struct {
	QOMType  string `json:"qom-type" from:"hugePageBytes" rule:"memory of QEMU's own process, of a kind that can be of huge pages"`
	ID       string `json:"id" rule:"the name that migration knows"`
	Size     int64  `json:"size" from:"memoryBytes"`
	Huge     bool   `json:"hugetlb" from:"hugePageBytes" rule:"the memory is huge pages"`
	Page     int64  `json:"hugetlbsize" from:"hugePageBytes"`
	Prealloc bool   `json:"prealloc" from:"hugePageBytes" rule:"QEMU takes all pages at its start: where one is missing it ends with an error, and the guest is not killed later"`
}

// ram is the memory backend of the guest's RAM.
func (m *Machine) ram() Arg {
	if m.HugePageBytes == 0 {
		return Arg{Flag: "-object", Value: memoryProps{QOMType: "memory-backend-ram", ID: ramID, Size: m.MemoryBytes}, From: "memoryBytes,hugePageBytes"}
	}
	return Arg{Flag: "-object", Value: hugeMemoryProps{QOMType: "memory-backend-memfd", ID: ramID, Size: m.MemoryBytes, Huge: true, Page: m.HugePageBytes, Prealloc: true},
		From: "memoryBytes,hugePageBytes"}
}
