package resolve

import (
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestImagesArriveInEitherWay: a guest moves between pods that have its container disks as volumes, and pods whose
// containers hand them out. It does not move to another image.
func TestImagesArriveInEitherWay(t *testing.T) {
	const handed, mounted = "volume-container-disk-handed-out", "cdrom-scsi"
	for _, ways := range [][2]string{{handed, mounted}, {mounted, handed}, {handed, handed}, {mounted, mounted}} {
		vmi, host := load(t, filepath.Join("testdata/machines", ways[0]), "11.1")
		_, here := load(t, filepath.Join("testdata/machines", ways[1]), "11.1")
		v1.Default(vmi)
		machine, errs := Machine(vmi, host)
		if len(errs) > 0 {
			t.Fatal(errs.ToAggregate())
		}
		from := Origin{Machine: *machine, QEMUVersion: host.QEMUVersion}
		arrived, err := Arrival(vmi, from, here)
		if err != nil {
			t.Errorf("%v: %v", ways, err)
			continue
		}
		want, _ := Machine(vmi, here)
		for i := range want.Disks {
			if arrived.Disks[i].Image != want.Disks[i].Image {
				t.Errorf("%v: the disk is %+v, want %+v", ways, arrived.Disks[i].Image, want.Disks[i].Image)
			}
		}
		for name, change := range map[string]func(*qemuargs.ImageFacts){
			"another format": func(f *qemuargs.ImageFacts) { f.Format = qemuargs.Raw },
			"another size":   func(f *qemuargs.ImageFacts) { f.VirtualSize *= 2 },
			"nothing":        func(f *qemuargs.ImageFacts) { *f = qemuargs.ImageFacts{} },
			"an error":       func(f *qemuargs.ImageFacts) { f.Error = "the container image has no folder /disk" },
		} {
			other := here
			other.ContainerDisks = map[string]qemuargs.ImageFacts{}
			for volume, facts := range here.ContainerDisks {
				if volume == "root" {
					change(&facts)
				}
				other.ContainerDisks[volume] = facts
			}
			if _, err := Arrival(vmi, from, other); err == nil || !strings.Contains(err.Error(), `"root"`) {
				t.Errorf("%v, %s: %v", ways, name, err)
			}
		}
	}
}
