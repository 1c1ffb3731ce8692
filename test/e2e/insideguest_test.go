package e2e

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/zone"
)

// everyDisk prints name, bus and serial number of each hard disk with the number of bytes that can be read of it, and bus and first line of each
// CD-ROM.
const everyDisk = `for d in /sys/block/vd? /sys/block/sd? /sys/block/sr?; do n=${d##*/}; ` +
	`case $(readlink -f $d) in */usb*) k=usb;; */ata*) k=sata;; */host*) k=scsi;; *) k=virtio;; esac; ` +
	`case $n in sr*) mkdir -p /tmp/$n; mount -o ro -t iso9660 /dev/$n /tmp/$n; echo cdrom $k $(cat /tmp/$n/text);; *) ` +
	`s=$(cat $d/serial 2>/dev/null || cat $d/device/../../../../serial 2>/dev/null || tail -c +5 $d/device/vpd_pg80 2>/dev/null | tr -d '\0 '); ` +
	`echo disk $k $s $(dd if=/dev/$n bs=4k count=16 2>/dev/null | wc -c);; esac; done`

// slic is an ACPI table SLIC of 374 bytes whose checksum is right.
func slic() []byte {
	table := append(binary.LittleEndian.AppendUint32([]byte("SLIC"), 374), make([]byte, 374-8)...)
	copy(table[10:], "EXAMPLLICENSE")
	var sum byte
	for _, b := range table {
		sum += b
	}
	table[9] -= sum
	return table
}

// TestGuestFindsWhatItsVMISays: a guest finds in itself what its VirtualMachineInstance says: disks by serial number and CD-ROMs on each bus, topology and
// model of its CPUs, SMBIOS, a clock with a time zone, an ACPI table of a Secret, the number of its network card, a sound card, and a disk of
// which it can discard nothing. Its kernel panics, and the VirtualMachineInstance says so. A guest whose rebootPolicy is Terminate ends by a reboot.
func TestGuestFindsWhatItsVMISays(t *testing.T) {
	ns := namespace(t)
	license, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "license"},
		"data": map[string]string{"slic.bin": base64.StdEncoding.EncodeToString(slic())}})
	if err != nil {
		t.Fatal(err)
	}
	hold(t, ns, string(license))
	edits := []func(*v1.VirtualMachineInstanceSpec){onSATA, func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Memory.Guest = ptr.To(resource.MustParse("192Mi"))
		s.Domain.CPU = &v1.CPU{Sockets: 2, Cores: 1, Threads: 1, Model: "Nehalem"}
		s.Domain.Chassis = &v1.Chassis{Manufacturer: "Example, Inc.", Asset: "A 17"}
		s.Domain.Firmware = &v1.Firmware{Serial: "M-0001", ACPI: &v1.ACPITables{SlicNameRef: "license"}}
		s.Domain.Clock = &v1.Clock{Timezone: "Asia/Kathmandu"}
		s.Domain.Devices.Sound = &v1.SoundDevice{Name: "speaker"}
		s.Domain.Devices.PanicDevices = []v1.PanicDevice{{}, {Model: ptr.To(v1.PanicPVPanic)}}
		s.Domain.Devices.Interfaces[0].ACPIIndex = 7
		s.Volumes = append(s.Volumes, v1.Volume{Name: "license", Secret: &v1.SecretVolumeSource{SecretName: "license"}})
	}}
	for _, bus := range []v1.DiskBus{v1.DiskBusVirtio, v1.DiskBusSATA, v1.DiskBusSCSI, v1.DiskBusUSB} {
		disk := hardDisk(bus)
		disk.Serial = strings.ToUpper(string(bus)) + "-1"
		if bus == v1.DiskBusVirtio {
			disk.BlockSize = &v1.BlockSize{Custom: &v1.CustomBlockSize{Logical: 512, Physical: 4096, DiscardGranularity: ptr.To[uint32](0)}}
		}
		edits = append(edits, files(disk, v1.Volume{Name: "on-" + string(bus), EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse("16Mi")}}))
		if bus == v1.DiskBusVirtio {
			continue // which has no CD-ROM drives
		}
		hold(t, ns, object(t, "ConfigMap", "cd-"+string(bus), map[string]string{"text": "on " + string(bus)}))
		edits = append(edits, files(cdrom(bus), v1.Volume{Name: "cd-" + string(bus), ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cd-" + string(bus)}}}))
	}
	v := create(t, ns, tiny("inside", edits...))
	once := create(t, ns, tiny("once", offline, func(s *v1.VirtualMachineInstanceSpec) { s.Domain.RebootPolicy = ptr.To(v1.RebootPolicyTerminate) }))
	status := v.await(v1.Running).Status
	if m := status.Memory; m == nil || m.GuestAtBoot.Value() != 192<<20 || m.MemoryOverhead == nil || m.MemoryOverhead.Value() < 64<<20 {
		t.Errorf("status.memory is %+v", m)
	}
	shell := v.shell()
	v.in(shell, "modprobe -qa xhci_pci usb_storage isofs; for i in $(seq 300); do [ -e /sys/block/sdc ] && [ -e /sys/block/sr2 ] && break; usleep 100000; done")
	seen := v.in(shell, everyDisk)
	for _, want := range []string{"disk virtio VIRTIO-1 65536", "disk sata SATA-1 65536", "disk scsi SCSI-1 65536", "disk usb USB-1 65536", "cdrom sata on sata", "cdrom scsi on scsi", "cdrom usb on usb"} {
		if strings.Count(seen, want) != 1 {
			t.Errorf("the guest has no %q:\n%s", want, seen)
		}
	}
	for command, want := range map[string]string{
		"cat /sys/devices/system/cpu/cpu*/topology/physical_package_id | sort | tr '\\n' ' '":        "0 1",
		"cat /sys/devices/system/cpu/cpu1/topology/core_cpus_list":                                   "1",
		"grep -c 'model name.*Nehalem' /proc/cpuinfo":                                                "2",
		"cd /sys/class/dmi/id; paste -d/ sys_vendor product_serial chassis_vendor chassis_asset_tag": "KubeVirt/M-0001/Example, Inc./A 17",
		"cat /sys/class/dmi/id/product_uuid":                                                         v.get().Spec.Domain.Firmware.UUID,
		"md5sum </sys/firmware/acpi/tables/SLIC":                                                     sum(string(slic())) + "  -",
		"cat $(readlink -f /sys/class/net/eth0/device)/../acpi_index":                                "7",
		"grep -l 0x293e /sys/bus/pci/devices/*/device | wc -l":                                       "1",
		"cat /sys/block/vdb/queue/discard_max_bytes":                                                 "0",
	} {
		if got := v.in(shell, command); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
	kathmandu := zone.Offset("Asia/Kathmandu", time.Now())
	if seconds, err := strconv.ParseInt(v.in(shell, "cat /sys/class/rtc/rtc0/since_epoch"), 10, 64); err != nil || kathmandu == nil {
		t.Errorf("the guest's clock: %v", err)
	} else if ahead := seconds - time.Now().Unix(); ahead < *kathmandu-60 || ahead > *kathmandu+2 {
		t.Errorf("the guest's clock is %d seconds ahead of UTC, want %d", ahead, *kathmandu)
	}

	// What a driver of pvpanic writes.
	shell.send("printf '\\001' | dd of=/dev/port bs=1 seek=1285 conv=notrunc\n")
	if c := v.await(v1.Failed).Status.Condition(v1.ConditionReady); c == nil || c.Status != metav1.ConditionFalse || !strings.Contains(fmt.Sprint(c.Reason, c.Message), "panicked") {
		t.Errorf("after the panic Ready is %+v", c)
	}
	once.await(v1.Running)
	once.shell().send("echo b >/proc/sysrq-trigger\n")
	if c := once.await(v1.Succeeded).Status.Condition(v1.ConditionReady); c == nil || !strings.Contains(c.Message, "rebootPolicy is Terminate") {
		t.Errorf("after the reboot Ready is %+v", c)
	}
}
