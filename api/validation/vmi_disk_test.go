package validation

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func TestValidateDisks(t *testing.T) {
	disks := func(s *spec) []v1.Disk { return s.Domain.Devices.Disks }
	order := func(order uint32) func(*spec) {
		return func(s *spec) { disks(s)[0].BootOrder = &order }
	}
	serial := func(length int) func(*spec) {
		return func(s *spec) { disks(s)[0].Disk.Bus, disks(s)[0].Serial = "scsi", strings.Repeat("x", length) }
	}
	edits{
		"two disks of a volume":             {func(s *spec) { disks(s)[1].Name = "root" }, "[1].name"},
		"boot order 0":                      {order(0), "[0].bootOrder"},
		"boot order that QEMU cannot count": {order(1 << 31), "[0].bootOrder"},
		"long serial on SCSI":               {serial(37), "[0].serial"},
		"UUID as serial on SCSI":            {serial(36), ""},
		"long serial on USB":                {func(s *spec) { serial(21)(s); disks(s)[0].Disk.Bus = "usb" }, "[0].serial"},
		"serial of 20 on USB":               {func(s *spec) { serial(20)(s); disks(s)[0].Disk.Bus = "usb" }, ""},
		"long serial of a CD-ROM on USB": {func(s *spec) {
			disks(s)[1].CDRom.Bus, disks(s)[1].Serial = "usb", strings.Repeat("x", 21)
		}, "[1].serial"},
		"disk and CD-ROM": {func(s *spec) { disks(s)[1].Disk = &v1.DiskTarget{Bus: v1.DiskBusVirtio} },
			"[1]"},
		"writable CD-ROM": {func(s *spec) { disks(s)[1].CDRom.ReadOnly = ptr.To(false) }, ""},
		"open tray":       {func(s *spec) { disks(s)[1].CDRom.Tray = "open" }, "[1].cdrom.tray"},
		"native I/O through the page cache": {func(s *spec) {
			disks(s)[0].IO, disks(s)[0].Cache = v1.IONative, v1.CacheWriteBack
		}, "[0].io"},
		"native I/O": {func(s *spec) { disks(s)[0].IO, disks(s)[0].Cache = v1.IONative, v1.CacheNone },
			""},
		"no cache mode":  {func(s *spec) { disks(s)[0].Cache = "unsafe" }, "[0].cache"},
		"no kind of I/O": {func(s *spec) { disks(s)[0].IO = "default" }, "[0].io"},
		"no error policy": {func(s *spec) { disks(s)[0].ErrorPolicy = ptr.To[v1.DiskErrorPolicy]("panic") },
			"[0].errorPolicy"},
		"shared through the page cache": {func(s *spec) {
			disks(s)[0].Shareable, disks(s)[0].Cache = ptr.To(true), v1.CacheWriteThrough
		}, "[0].shareable"},
		"thread of a SATA disk": {func(s *spec) {
			disks(s)[0].Disk.Bus, disks(s)[0].DedicatedIOThread = "sata", ptr.To(true)
		}, "[0].dedicatedIOThread"},
		"no thread of a SATA disk": {func(s *spec) {
			disks(s)[0].Disk.Bus, disks(s)[0].DedicatedIOThread = "sata", ptr.To(false)
		}, ""},
		"block size of a CD-ROM": {func(s *spec) {
			disks(s)[1].BlockSize = &v1.BlockSize{MatchVolume: &v1.FeatureState{}}
		}, "[1].blockSize"},
		"empty CD-ROM": {func(s *spec) {
			s.Volumes[2] = v1.Volume{Name: "seed", EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse("1Gi")}}
			disks(s)[2] = v1.Disk{Name: "seed", CDRom: &v1.CDRomTarget{Bus: v1.DiskBusSATA, Tray: "closed"}}
		}, "[2]"},
	}.try(t, "spec.domain.devices.disks")
}
