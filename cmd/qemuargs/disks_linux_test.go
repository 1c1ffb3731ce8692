package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const disksVM = `
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: disks}
spec:
  domain:
    memory: {guest: 192Mi}
    cpu: {cores: 2}
    ioThreadsPolicy: auto
    devices:
      autoattachPodInterface: false
      autoattachGraphicsDevice: false
      disks:
      - {name: root, disk: {bus: virtio}}
      - {name: onvirtio, disk: {bus: virtio, pciAddress: "0000:00:06.0"}, serial: VIRTIO1, dedicatedIOThread: true, cache: writeback, blockSize: {custom: {logical: 4096, physical: 8192, discardGranularity: 65536}}}
      - {name: onscsi, disk: {bus: scsi}, serial: SCSI1, cache: writethrough, blockSize: {matchVolume: {}}}
      - {name: onsata, disk: {bus: sata}, serial: SATA1, errorPolicy: report, blockSize: {custom: {logical: 512, physical: 4096}}}
      - {name: onusb, disk: {bus: usb}, serial: USB1}
      - {name: mediausb, cdrom: {bus: usb}}
      - {name: mediascsi, cdrom: {bus: scsi}}
      - {name: mediasata, cdrom: {bus: sata}}
  volumes:
  - {name: root, containerDisk: {image: "registry.example/tiny:v1"}}
  - {name: onvirtio, emptyDisk: {capacity: 16Mi}}
  - {name: onscsi, emptyDisk: {capacity: 16Mi}}
  - {name: onsata, emptyDisk: {capacity: 16Mi}}
  - {name: onusb, emptyDisk: {capacity: 16Mi}}
  - {name: mediausb, containerDisk: {image: "registry.example/media:v1"}}
  - {name: mediascsi, containerDisk: {image: "registry.example/media:v1"}}
  - {name: mediasata, containerDisk: {image: "registry.example/media:v1"}}
`

// seen is what a shell in the guest says of each disk: the serial number, the block sizes, what it can discard, whether it
// has a write cache, and whether it can be written to and read back.
const seen = `for d in /sys/block/vd? /sys/block/sd? /sys/block/sr?; do n=${d##*/}; ` +
	`s=$(cat $d/serial 2>/dev/null || cat $d/device/../../../../serial 2>/dev/null || tail -c +5 $d/device/vpd_pg80 2>/dev/null | tr -d '\0 '); ` +
	`q=$d/queue; echo "DISK $s $(cat $q/logical_block_size) $(cat $q/physical_block_size) $(cat $q/discard_granularity) $(cat $q/write_cache)" | tr '\n' ' '; ` +
	`case "$n $s" in sr*|"$n ") dd if=/dev/$n of=/dev/null bs=4k count=16 2>/dev/null && echo read;; ` +
	`*) dd if=/dev/urandom of=/tmp/x bs=4k count=16 2>/dev/null; dd if=/tmp/x of=/dev/$n bs=4k conv=fsync 2>/dev/null && echo 3 >/proc/sys/vm/drop_caches && ` +
	`dd if=/dev/$n bs=4k count=16 2>/dev/null | cmp - /tmp/x && echo written;; esac; done; echo END $(ls /sys/bus/pci/devices/0000:00:06.0/virtio*/block)`

// TestRunWithADiskOnEachBus: a real guest finds a disk on each bus by its serial number, with the sizes of blocks that the disk is to have, and
// reads and writes on all of them, whatever thread serves them. A CD-ROM drive is on each bus that can have one.
func TestRunWithADiskOnEachBus(t *testing.T) {
	t.Parallel()
	image, err := filepath.Abs("../../_output/images/tiny-container-disk.tar") // with the drivers of all buses
	if err == nil {
		_, err = os.Stat(image)
	}
	if err != nil {
		t.Fatalf("find the tiny guest (run config/images/build.sh tiny): %v", err)
	}
	media := filepath.Join(t.TempDir(), "media.img")
	if err := os.WriteFile(media, make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(media), 0o755); err != nil {
		t.Fatal(err)
	}
	args := []string{"--image", "root=" + image}
	for _, name := range []string{"mediausb", "mediascsi", "mediasata"} {
		args = append(args, "--image", name+"="+media)
	}
	s := newStarted(t, disksVM, args...).begin()
	s.out.Expect("tiny# ")
	s.press("modprobe -a xhci_pci usb_storage; for i in $(seq 60); do [ -e /sys/block/sr2 ] && [ -e /sys/block/sdc ] && break; sleep 1; done; " + seen + "\n")
	s.out.Expect("\nEND vda")
	said := s.out.String()
	for _, want := range []string{
		"DISK VIRTIO1 4096 8192 65536 write back written",
		"DISK SCSI1 4096 4096 4096 write through written",
		"DISK SATA1 512 4096 4096 write back written",
		"DISK USB1 512 512 0 write back written",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("the guest does not say %q", want)
		}
	}
	if n := strings.Count(said, " 2048 2048 0 write through read"); n != 3 {
		t.Errorf("%d CD-ROM drives have sectors of 2048 bytes, want 3", n)
	}
	s.press("poweroff -f\n")
	s.expectCode(0)
}
