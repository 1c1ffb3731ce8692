package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// guestMemory of every guest here, in bytes.
const guestMemory = 256 << 20

// diskVolume is the guests' only disk.
const diskVolume = "root"

// guestVMI is the guest of every row: one vCPU, 256 MiB, one virtio disk from
// a container image, one interface, a serial console, no graphics. It ends at
// once.
func guestVMI(namespace, name, image string) *v1.VirtualMachineInstance {
	return &v1.VirtualMachineInstance{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1.GroupVersion.String(), Kind: "VirtualMachineInstance"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: v1.VirtualMachineInstanceSpec{
			Domain: v1.DomainSpec{
				Memory: &v1.Memory{Guest: resource.NewQuantity(guestMemory, resource.BinarySI)},
				Devices: v1.Devices{
					Disks:                    []v1.Disk{{Name: diskVolume, Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}},
					Interfaces:               []v1.Interface{{Name: "default", Masquerade: &v1.InterfaceMasquerade{}}},
					AutoattachGraphicsDevice: ptr.To(false),
				},
			},
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			Networks:                      []v1.Network{{Name: "default", Pod: &v1.PodNetwork{}}},
			Volumes:                       []v1.Volume{{Name: diskVolume, ContainerDisk: &v1.ContainerDiskSource{Image: image}}},
		},
	}
}

// banner is what the boot sector writes to the serial port.
const banner = 'u'

// idleBootSector is a guest of 512 bytes: it writes the banner and halts, so
// that its QEMU is idle as soon as SeaBIOS is done.
func idleBootSector() []byte {
	sector := make([]byte, 512)
	copy(sector, []byte{
		0xba, 0xf8, 0x03, // mov dx, COM1
		0xb0, banner, // mov al, banner
		0xee,       // out dx, al
		0xb0, '\n', // mov al, newline: the launcher logs whole lines
		0xee,       // out dx, al
		0xfa, 0xf4, // cli; hlt
		0xeb, 0xfd, // jmp to hlt
	})
	sector[510], sector[511] = 0x55, 0xaa
	return sector
}

// writeContainerDisk writes a disk with a boot sector where the launcher looks for an image volume.
func writeContainerDisk(images string, bootSector []byte) {
	folder := filepath.Join(images, diskVolume, "disk")
	file := filepath.Join(folder, "disk.img")
	// Others, libvirt's user among them, read it as well.
	check(errors.Join(os.MkdirAll(folder, 0o755), os.WriteFile(file, bootSector, 0o644), os.Truncate(file, 1<<20)))
}

// kernelArgs are the kernel's arguments of the tiny guest.
const kernelArgs = "console=ttyS0 quiet nokaslr cryptomgr.notests mitigations=off no_timer_check"

// tinyMachine is the tiny guest's Machine, booted directly. Its files are in folder.
func tinyMachine(r *run, folder, kernelArgs string, cards map[string]resolve.NIC) (m *qemuargs.Machine) {
	kernel := &qemuargs.Kernel{Path: filepath.Join(folder, "vmlinuz"), Initrd: filepath.Join(folder, "initrd"),
		Args: kernelArgs}
	files := map[string]string{"boot/vmlinuz": kernel.Path, "boot/initrd": kernel.Initrd}
	found := unpack(r.output("images", "tiny-virtio-container-disk.tar"), func(name string) string { return files[name] })
	if found != len(files) {
		fail("unpack the kernel: of %v there are %d", files, found)
	}
	r.turn(func(r *run) { m = launch(r, folder, idleBootSector()).resolve(r, cards) })
	m.Kernel = kernel
	return m
}

// until reads up to a mark.
func until(from net.Conn, mark string) {
	check(from.SetReadDeadline(time.Now().Add(patience)))
	var all []byte
	for chunk := make([]byte, 4096); !bytes.Contains(all, []byte(mark)); {
		n, err := from.Read(chunk)
		all = append(all, chunk[:n]...)
		check(err, fmt.Sprintf("read up to %q, after %q", mark, all))
	}
}
