package disks

import (
	"testing"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestWhichDisksCanGrow: of a Machine's disks, those that a guest writes to a volume. QEMU is not asked about others.
func TestWhichDisksCanGrow(t *testing.T) {
	volume := qemuargs.Image{Volume: qemuargs.FileVolume}
	for name, d := range map[string]qemuargs.Disk{"not in a volume": {}, "read": {Image: volume, ReadOnly: true},
		"over": {Image: volume, Overlay: &qemuargs.Overlay{}}} {
		if _, _, err := (&Looks{}).Room(t.Context(), nil, d, 1<<30); err == nil {
			t.Errorf("a disk %s could grow", name)
		}
	}
}
