package resolve

import (
	"maps"
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

// TestImagesArriveWithTheirCache: a disk whose spec wants the page cache has it on the other node too, and native I/O
// goes to no image that O_DIRECT does not work on.
func TestImagesArriveWithTheirCache(t *testing.T) {
	arrive := func(change func(*v1.Disk), there func(*qemuargs.ImageFacts)) (had, got qemuargs.Disk, err error) {
		t.Helper()
		vmi, host := load(t, "testdata/machines/volume-container-disk-handed-out", "11.1")
		v1.Default(vmi)
		host.OverlayDirect, host.AIO.Native = true, true
		change(&vmi.Spec.Domain.Devices.Disks[0])
		machine, errs := Machine(vmi, host)
		if len(errs) > 0 {
			t.Fatal(errs.ToAggregate())
		}
		from := Origin{Machine: *machine, QEMUVersion: host.QEMUVersion}
		facts := host.ContainerDisks["root"]
		there(&facts)
		host.ContainerDisks["root"] = facts
		arrived, err := Arrival(vmi, from, host)
		if err != nil {
			return machine.Disks[0], got, err
		}
		return machine.Disks[0], arrived.Disks[0], nil
	}
	same := func(*qemuargs.ImageFacts) {}
	for _, cache := range []v1.DriverCache{"", v1.CacheNone, v1.CacheWriteBack, v1.CacheWriteThrough} {
		had, got, err := arrive(func(d *v1.Disk) { d.Cache = cache }, same)
		if err != nil || got.Image != had.Image {
			t.Errorf("cache %q: the disk is %+v, and was %+v (%v)", cache, got.Image, had.Image, err)
		}
	}
	native := func(d *v1.Disk) { d.IO = v1.IONative }
	if _, got, err := arrive(native, same); err != nil || got.AIO != qemuargs.Native {
		t.Errorf("native: %+v (%v)", got, err)
	}
	if _, _, err := arrive(native, func(f *qemuargs.ImageFacts) { f.Direct = false }); err == nil ||
		!strings.Contains(err.Error(), "O_DIRECT") {
		t.Errorf("native without O_DIRECT: %v", err)
	}
}

// TestImageThatIsHandedOutIsTuned: a disk without a path is tuned as one with a path.
func TestImageThatIsHandedOutIsTuned(t *testing.T) {
	for _, machine := range []string{"volume-container-disk-handed-out", "cdrom-scsi"} {
		for name, change := range map[string]func(*v1.Disk){
			"spec.domain.devices.disks[0].cache": func(d *v1.Disk) { d.Cache = v1.CacheNone },
			"spec.domain.devices.disks[0].io":    func(d *v1.Disk) { d.IO = v1.IONative },
			"spec.domain.devices.disks[0].blockSize.matchVolume": func(d *v1.Disk) {
				d.BlockSize = &v1.BlockSize{MatchVolume: &v1.FeatureState{}}
			},
		} {
			vmi, host := load(t, filepath.Join("testdata/machines", machine), "11.1")
			v1.Default(vmi)
			host.AIO.Native, host.OverlayBlocks = true, nil
			facts := host.ContainerDisks["root"]
			facts.Direct = false
			host.ContainerDisks["root"] = facts
			change(&vmi.Spec.Domain.Devices.Disks[0])
			if _, errs := Machine(vmi, host); len(errs) != 1 || errs[0].Field != name {
				t.Errorf("%s: %v, want an error at %s", machine, errs, name)
			}
		}
	}
}

// TestReadOnlyImageArrivesWithItsSize: a disk that the guest only reads is as large on the other node, if the source
// tells how large it was.
func TestReadOnlyImageArrivesWithItsSize(t *testing.T) {
	vmi, host := load(t, "testdata/machines/volume-container-disk-handed-out", "11.1")
	v1.Default(vmi)
	machine, errs := Machine(vmi, host)
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	from := Origin{Machine: *machine, QEMUVersion: host.QEMUVersion, Images: maps.Clone(host.ContainerDisks)}
	if _, err := Arrival(vmi, from, host); err != nil {
		t.Errorf("the same image: %v", err)
	}
	facts := host.ContainerDisks["media"]
	facts.VirtualSize *= 2
	host.ContainerDisks["media"] = facts
	if _, err := Arrival(vmi, from, host); err == nil || !strings.Contains(err.Error(), `"media"`) {
		t.Errorf("a larger image: %v", err)
	}
	from.Images = nil
	if _, err := Arrival(vmi, from, host); err != nil {
		t.Errorf("a source that tells nothing: %v", err)
	}
}
