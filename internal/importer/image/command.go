package image

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Segment is a part of a disk.
type Segment struct{ Offset, Bytes int64 }

// Target is the file or the block device that is written.
type Target struct {
	Path  string
	Block bool
}

// node is a block node of QEMU, as JSON. The fields that a driver does not have are left away.
type node struct {
	Driver string `json:"driver"`
	Offset *int64 `json:"offset,omitempty"`
	Size   *int64 `json:"size,omitempty"`
	// Backing is null for qcow2 and vmdk: whatever the header says, there is none.
	Backing *struct{} `json:"backing"`
	// Slice is how many bytes of a table of qcow2 are read at once.
	Slice  int64   `json:"l2-cache-entry-size,omitempty"`
	File   *node   `json:"file,omitempty"`
	Server *socket `json:"server,omitempty"`
}

type socket struct {
	Type string `json:"type"`
	Path string `json:"path"`
}

// MarshalJSON leaves Backing away where a driver has no such option.
func (n node) MarshalJSON() ([]byte, error) {
	type plain node
	if n.Driver == string(QCOW2) || n.Driver == string(VMDK) {
		return json.Marshal(plain(n))
	}
	return json.Marshal(struct {
		plain
		Backing *struct{} `json:"backing,omitempty"`
	}{plain: plain(n)})
}

// maxSlice is the usual size of qcow2's tables. Where clusters are large, tables are too, and each segment
// would read them whole.
const maxSlice = 64 << 10

// source is the image behind an NBD socket, with its format: nothing is probed.
func source(h Header, socketPath string) node {
	n := node{Driver: string(h.Format), File: &node{Driver: "nbd", Server: &socket{Type: "unix", Path: socketPath}}}
	if h.Format == QCOW2 {
		n.Slice = min(h.Cluster, maxSlice)
	}
	return n
}

// filename is the node where qemu-img wants a file name.
func (n node) filename() (string, error) {
	text, err := json.Marshal(n)
	return "json:" + string(text), err
}

// infoCommand are the arguments of qemu-img that tell the size of the disk in an image.
func infoCommand(h Header, socketPath string) ([]string, error) {
	from, err := source(h, socketPath).filename()
	return []string{"info", "--output=json", from}, err
}

// measureCommand are the arguments of qemu-img that tell how much of the disk in an image has data. For raw,
// qemu-img would tell the disk's size.
func measureCommand(h Header, socketPath string) ([]string, error) {
	from, err := source(h, socketPath).filename()
	return []string{"measure", "--output=json", "-O", string(QCOW2), from}, err
}

// convertCommand are the arguments of qemu-img that write a segment of an image's disk to the same
// place of a target. The target is never made and never made larger. zeroed: the target has zeros
// already where the image has them.
func convertCommand(h Header, socketPath string, s Segment, to Target, zeroed bool) ([]string, error) {
	image := source(h, socketPath)
	from, err := node{Driver: "raw", Offset: &s.Offset, Size: &s.Bytes, File: &image}.filename()
	if err != nil {
		return nil, fmt.Errorf("name the image for qemu-img: %w", err)
	}
	driver := "file"
	if to.Block {
		driver = "host_device"
	}
	// At most four requests of 2 MiB at a time, and zeros of 4 KiB and more stay holes. qemu-img inflates
	// compressed clusters in as many threads.
	args := []string{"convert", "-n", "-m", "4", "-S", "4k"}
	if zeroed {
		args = append(args, "--target-is-zero")
	}
	return append(args, "--target-image-opts", from, strings.Join([]string{
		"driver=raw",
		"offset=" + strconv.FormatInt(s.Offset, 10),
		"size=" + strconv.FormatInt(s.Bytes, 10),
		"file.driver=" + driver,
		// QEMU splits options at commas, and takes two of them for one.
		"file.filename=" + strings.ReplaceAll(to.Path, ",", ",,"),
	}, ",")), nil
}
