//go:build long

package resolve

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/api/validation"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestQEMUTakesEachDiskThatIsAccepted: of each value on each bus and for each kind of disk, either the VMI is refused,
// or each QEMU takes the disk.
func TestQEMUTakesEachDiskThatIsAccepted(t *testing.T) {
	edits := map[string]func(*v1.Disk){"plain": func(*v1.Disk) {}, "shared": func(d *v1.Disk) { d.Shareable = ptr.To(true) },
		"first": func(d *v1.Disk) { d.BootOrder = ptr.To(uint32(1)) }, "last": func(d *v1.Disk) { d.BootOrder = ptr.To(uint32(1<<31 - 1)) },
		"thread": func(d *v1.Disk) { d.DedicatedIOThread = ptr.To(true) }, "volume's blocks": func(d *v1.Disk) { d.BlockSize = &v1.BlockSize{MatchVolume: &v1.FeatureState{}} }}
	for _, length := range []int{1, 20, 21, 36, 37, 256} {
		edits[fmt.Sprint("serial ", length)] = func(d *v1.Disk) { d.Serial = strings.Repeat("x", length) }
	}
	for _, policy := range []v1.DiskErrorPolicy{v1.DiskErrorPolicyStop, v1.DiskErrorPolicyIgnore, v1.DiskErrorPolicyReport, v1.DiskErrorPolicyEnospace} {
		edits["error "+string(policy)] = func(d *v1.Disk) { d.ErrorPolicy = &policy }
	}
	for _, cache := range []v1.DriverCache{v1.CacheNone, v1.CacheWriteThrough, v1.CacheWriteBack} {
		for _, io := range []v1.DriverIO{"", v1.IONative, v1.IOThreads, v1.IOURing} {
			edits[fmt.Sprintf("cache %s, io %s", cache, io)] = func(d *v1.Disk) { d.Cache, d.IO = cache, io }
		}
	}
	for _, sizes := range [][3]uint32{{512, 512, 512}, {512, 4096, 0}, {4096, 4096, 4096}, {2048, 32768, 2048}, {512, 2 << 20, 512}, {2 << 20, 2 << 20, 1 << 30}, {4096, 8192, 65536}} {
		edits[fmt.Sprint("blocks ", sizes)] = func(d *v1.Disk) {
			d.BlockSize = &v1.BlockSize{Custom: &v1.CustomBlockSize{Logical: sizes[0], Physical: sizes[1], DiscardGranularity: &sizes[2]}}
		}
	}
	accepted := 0
	for _, q := range qemus(t) {
		for _, bus := range []v1.DiskBus{v1.DiskBusVirtio, v1.DiskBusSCSI, v1.DiskBusSATA, v1.DiskBusUSB} {
			for kind, disk := range map[string]v1.Disk{"disk": {Disk: &v1.DiskTarget{Bus: bus}}, "read-only disk": {Disk: &v1.DiskTarget{Bus: bus, ReadOnly: true}}, "CD-ROM": {CDRom: &v1.CDRomTarget{Bus: bus}}} {
				for name, edit := range edits {
					vmi, host := load(t, filepath.Join("testdata/machines/disk-two"), hosts[0])
					d := *disk.DeepCopy()
					d.Name = "root"
					edit(&d)
					vmi.Spec.Domain.Devices.Disks[0] = d
					v1.Default(vmi)
					if len(validation.ValidateVirtualMachineInstance(vmi)) > 0 {
						continue
					}
					host.Accelerator, host.QEMUVersion = qemuargs.TCG, q.version
					machine, errs := Machine(vmi, host)
					if len(errs) > 0 {
						continue // which is said by the field's name, too
					}
					accepted++
					t.Run(fmt.Sprintf("%s/%s %s, %s", q.version, bus, kind, name), func(t *testing.T) {
						t.Parallel()
						startStopped(t, q, machine)
					})
				}
			}
		}
	}
	if accepted < 200 {
		t.Errorf("only %d disks are accepted", accepted)
	}
}
