package resolve

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"k8s.io/apimachinery/pkg/api/resource"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// choices turns a fuzzer's bytes into decisions; without bytes left, the first
// of each is taken.
type choices []byte

func (c *choices) number(below int) int {
	if len(*c) == 0 {
		return 0
	}
	n := int((*c)[0]) % below
	*c = (*c)[1:]
	return n
}

func (c *choices) flag() bool { return c.number(2) == 1 }

func (c *choices) maybe() *bool {
	return []*bool{nil, ptr.To(true), ptr.To(false)}[c.number(3)]
}

func choose[T any](c *choices, from ...T) T { return from[c.number(len(from))] }

// order returns a boot order, mostly none.
func (c *choices) order() *uint32 {
	if n := c.number(8); n > 4 {
		return ptr.To(uint32(n - 5))
	}
	return nil
}

// vmi returns a VMI that is mostly valid, and the host it is on.
func (c *choices) vmi() (*v1.VirtualMachineInstance, Host) {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: choose(c, "a", "a.b", "with,comma"), Namespace: "default", UID: "0a1b2c3d-0000-4000-8000-000000000001"}}
	host := Host{Accelerator: qemuargs.TCG, QEMUVersion: "7.2.22", ContainerDisks: map[string]qemuargs.ImageFacts{}, NICs: map[string]NIC{}}
	d := &vmi.Spec.Domain
	d.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse(choose(c, "64Mi", "100M", "3Gi", "1", "5Ei")))}
	if c.flag() {
		d.CPU = &v1.CPU{Cores: uint32(c.number(5)), Sockets: uint32(c.number(4)), Threads: uint32(c.number(3)), Model: choose(c, "", "host-model", "host-passthrough", "Haswell", "qemu64", "a,b=c")}
	}
	d.Machine = &v1.Machine{Type: choose(c, "", "q35", "pc-q35-6.2", "pc-q35-7.2", "pc-q35-99.1", "pc", "q35,smm=on")}
	d.Firmware = &v1.Firmware{Serial: choose(c, "", "SN-1", "a,b", strings.Repeat("x", 256))}
	if c.flag() {
		d.Firmware.Bootloader = &v1.Bootloader{BIOS: &v1.BIOS{UseSerial: c.maybe()}}
	}
	if c.flag() {
		d.Firmware.KernelBoot = &v1.KernelBoot{KernelArgs: choose(c, "", "console=ttyS0", "a,b='c d'", "x\n-y"), Container: &v1.KernelBootContainer{Image: "k:1", KernelPath: choose(c, "/k", "", "k"), InitrdPath: choose(c, "", "/i")}}
		host.Kernel = &qemuargs.KernelFacts{Path: "/k", Initrd: choose(c, "", "/i")}
	}
	if c.flag() {
		d.Clock = &v1.Clock{Timer: &v1.Timer{HPET: &v1.HPETTimer{Present: c.maybe()}, PIT: &v1.PITTimer{Present: c.maybe(), TickPolicy: choose(c, "", "delay", "discard", "catchup")},
			RTC: &v1.RTCTimer{Present: c.maybe(), TickPolicy: choose(c, "", "delay", "catchup"), Track: choose(c, "", "guest", "wall", "moon")}, Hyperv: &v1.PresentTimer{}, KVM: &v1.PresentTimer{Present: c.maybe()}}}
	}
	if c.flag() {
		d.Features = &v1.Features{ACPI: v1.FeatureState{Enabled: c.maybe()}, APIC: &v1.FeatureAPIC{Enabled: c.maybe()}}
		if c.flag() {
			d.Features.SMM = &v1.FeatureState{Enabled: c.maybe()}
			d.Firmware.Bootloader = &v1.Bootloader{EFI: &v1.EFI{SecureBoot: c.maybe(), Persistent: c.maybe()}}
		}
	}
	host.OverlayDirect, host.AIO = c.flag(), qemuargs.AIOFacts{Native: c.flag(), IOURing: c.flag()}
	host.OverlayBlocks = choose(c, nil, &qemuargs.BlockSizes{Logical: 4096, Physical: 4096}, &qemuargs.BlockSizes{Logical: 1 << 31, Physical: 7})
	d.IOThreadsPolicy = choose(c, nil, ptr.To(v1.IOThreadsPolicyShared), ptr.To(v1.IOThreadsPolicyAuto), ptr.To(v1.IOThreadsPolicySupplementalPool), ptr.To[v1.IOThreadsPolicy]("a,b"))
	if c.flag() {
		d.IOThreads = &v1.DiskIOThreads{SupplementalPoolThreadCount: choose(c, nil, ptr.To[uint32](3), ptr.To[uint32](0), ptr.To[uint32](1<<31))}
	}
	d.Devices.UseVirtioTransitional = c.maybe()
	c.devices(&d.Devices)
	c.disks(vmi, host)
	c.interfaces(vmi, host)
	return vmi, host
}

func (c *choices) devices(d *v1.Devices) {
	d.AutoattachGraphicsDevice, d.AutoattachMemBalloon, d.AutoattachSerialConsole = c.maybe(), c.maybe(), c.maybe()
	d.AutoattachInputDevice, d.NetworkInterfaceMultiQueue, d.BlockMultiQueue = c.maybe(), c.maybe(), c.maybe()
	if c.flag() {
		d.Rng = &v1.Rng{}
	}
	if c.flag() {
		d.Watchdog = &v1.Watchdog{Name: choose(c, "dog", "", "-"), I6300ESB: &v1.I6300ESBWatchdog{Action: choose(c, "", "reset", "poweroff", "shutdown", "none")}}
	}
	if c.flag() {
		d.TPM = &v1.TPMDevice{Enabled: c.maybe(), Persistent: c.maybe()}
	}
	if c.flag() {
		d.Video = &v1.VideoDevice{Type: choose(c, "", "vga", "virtio", "bochs", "ramfb", "cirrus")}
	}
	for i := range c.number(4) {
		d.Inputs = append(d.Inputs, v1.Input{Name: fmt.Sprintf("in.%d_x", i), Type: choose(c, "", "tablet", "keyboard"), Bus: choose(c, "", "usb", "virtio")})
	}
}

// place returns a PCI address, of which some are none.
func (c *choices) place() string {
	return choose(c, "0000:03:00.0", "0000:00:06.0", "0000:00:10.0", "0000:20:00.0", "0000:00:1e.0", "0000:00:1f.0", "a,b")
}

// tuning returns mostly none, so that most VMIs stay valid.
func (c *choices) tuning(d *v1.Disk) {
	if c.number(4) < 3 {
		return
	}
	d.Cache, d.IO = choose[v1.DriverCache](c, "", "none", "writethrough", "writeback", "unsafe"), choose[v1.DriverIO](c, "", "native", "threads", "io_uring", "a,b")
	d.ErrorPolicy = choose(c, nil, ptr.To[v1.DiskErrorPolicy]("report"), ptr.To[v1.DiskErrorPolicy]("enospace"), ptr.To[v1.DiskErrorPolicy]("a,b"))
	d.Shareable, d.DedicatedIOThread = c.maybe(), c.maybe()
	if c.flag() {
		d.BlockSize = &v1.BlockSize{Custom: &v1.CustomBlockSize{Logical: choose[uint32](c, 512, 4096, 0, 3), Physical: choose[uint32](c, 4096, 512, 1<<31)}}
	} else if c.flag() {
		d.BlockSize = &v1.BlockSize{MatchVolume: &v1.FeatureState{Enabled: c.maybe()}}
	}
}

func (c *choices) disks(vmi *v1.VirtualMachineInstance, host Host) {
	for i := range c.number(40) {
		name := fmt.Sprintf("%s%d", choose(c, "disk-", "a-disk-with-a-name-that-is-longer-than-node-names-", "UPPER"), i)
		disk := v1.Disk{Name: name, BootOrder: c.order(), Serial: choose(c, "", "S1", "a,b")}
		if c.flag() {
			disk.CDRom = &v1.CDRomTarget{Bus: choose[v1.DiskBus](c, "", "sata", "scsi", "virtio", "usb"), ReadOnly: c.maybe()}
		} else {
			disk.Disk = &v1.DiskTarget{Bus: choose[v1.DiskBus](c, "virtio", "", "sata", "scsi", "ide", "usb"), ReadOnly: c.flag()}
			if c.number(4) == 3 {
				disk.Disk.PciAddress = c.place()
			}
		}
		c.tuning(&disk)
		vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, disk)
		volume := v1.Volume{Name: name}
		switch c.number(4) {
		case 0:
			volume.EmptyDisk = &v1.EmptyDiskSource{Capacity: resource.MustParse(choose(c, "1Mi", "1000", "0"))}
		case 1:
			volume.CloudInitNoCloud = &v1.CloudInitNoCloudSource{UserData: choose(c, "#cloud-config", "")}
		default:
			volume.ContainerDisk = &v1.ContainerDiskSource{Image: "x:1"}
			host.ContainerDisks[name] = qemuargs.ImageFacts{Path: "/x", Format: choose(c, qemuargs.QCOW2, qemuargs.Raw), VirtualSize: 1 << 20, Error: choose(c, "", "", "", "no such file")}
		}
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, volume)
	}
}

func (c *choices) interfaces(vmi *v1.VirtualMachineInstance, host Host) {
	if c.flag() {
		vmi.Spec.Domain.Devices.AutoattachPodInterface = c.maybe()
		host.NICs["default"] = NIC{MTU: choose(c, 1500, 9000, 0, 65535), MAC: "0a:58:0a:f4:00:05"}
		return
	}
	nic := v1.Interface{Name: choose(c, "default", "Net_1", "a,b"), Model: choose(c, "", "virtio", "e1000", "e1000e", "rtl8139", "ne2k_isa"), BootOrder: c.order(),
		MacAddress: choose(c, "", "52:54:00:00:00:01", "01:00:00:00:00:00")}
	if c.number(4) == 3 {
		nic.PciAddress = c.place()
	}
	if c.flag() {
		nic.Bridge = &v1.InterfaceBridge{}
	} else {
		nic.Masquerade = &v1.InterfaceMasquerade{}
	}
	vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{nic}
	vmi.Spec.Networks = []v1.Network{{Name: nic.Name, Pod: &v1.PodNetwork{}}}
	host.NICs[nic.Name] = NIC{MTU: choose(c, 1500, 9000, 1400, 65535)}
}

// FuzzMachine: a VMI resolves to arguments that the real QEMU takes, the same
// each time, or to errors that each name a field.
func FuzzMachine(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 0, 1, 2, 2, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1})
	for seed := range byte(8) {
		data := make([]byte, 200)
		for i := range data {
			data[i] = byte(i)*(2*seed+37) ^ byte(i>>3)*seed
		}
		f.Add(data)
	}
	both := qemus(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		c := choices(data)
		vmi, host := c.vmi()
		q := both[len(data)%2]
		host.QEMUVersion = q.version
		machine, errs := Machine(vmi, host)
		for _, err := range errs {
			if !strings.HasPrefix(err.Field, "spec.") {
				t.Errorf("an error that names no field: %v", err)
			}
		}
		if len(errs) > 0 {
			return
		}
		again, _ := Machine(vmi, host)
		one, other := qemuargs.Strings(machine.Args()), qemuargs.Strings(again.Args())
		if strings.Join(one, "\n") != strings.Join(other, "\n") {
			t.Errorf("the same VMI gives\n%q\nand\n%q", one, other)
		}
		startStopped(t, q, machine)
	})
}
