package qemuargs

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestEachInheritedFileIsOnTheCommandLine: every file that QEMU inherits has a name of its own, and its
// number is on the command line, where it is used.
func TestEachInheritedFileIsOnTheCommandLine(t *testing.T) {
	m := &Machine{Type: "pc-q35-7.2", Serial: &Serial{}, Agent: &Agent{},
		NICs: []NIC{{Name: "one", Driver: "virtio-net-pci", Queues: 1}, {Name: "two", Driver: "virtio-net-pci", Queues: 2}},
		Disks: []Disk{{Name: "image", Driver: IDEDisk}, {Name: "claim", Driver: IDEDisk, Image: Image{Volume: FileVolume}},
			{Name: "device", Driver: IDEDisk, Image: Image{Volume: BlockVolume}}}}
	var names []string
	for _, i := range m.Inherits() {
		names = append(names, i.String())
	}
	want := []string{"qmp", "serial", "tap/one/0", "tap/two/0", "tap/two/1", "disk/claim", "disk/device", "agent"}
	if !slices.Equal(names, want) {
		t.Fatalf("inherits %q, want %q", names, want)
	}
	number := func(name string) int { return FirstInherited + slices.Index(want, name) }
	line := strings.Join(Strings(m.Args()), " ")
	for _, use := range []string{
		fmt.Sprintf("socket,id=qmp,fd=%d ", number("qmp")),
		fmt.Sprintf("socket,id=serial0,fd=%d ", number("serial")),
		fmt.Sprintf("socket,id=agent0,fd=%d ", number("agent")),
		fmt.Sprintf(`"fd":"%d"`, number("tap/one/0")),
		fmt.Sprintf(`"fds":"%d:%d"`, number("tap/two/0"), number("tap/two/1")),
		fmt.Sprintf("-add-fd fd=%d,", number("disk/claim")),
		fmt.Sprintf("-add-fd fd=%d,", number("disk/device")),
	} {
		if !strings.Contains(line, use) {
			t.Errorf("the command line lacks %q: %s", use, line)
		}
	}
}
