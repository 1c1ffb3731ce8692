//go:build linux && long

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// catalogue has one VMI for each feature. Each starts in real QEMUs elsewhere, and stops there before its first instruction.
const catalogue = "../../qemuargs/resolve/testdata/machines"

// TestEachPlatformSwitchBoots: a real guest boots on each machine of the catalogue that this machine can give it, and finds its disk and its card.
func TestEachPlatformSwitchBoots(t *testing.T) {
	image, err := filepath.Abs("../../_output/images/tiny-container-disk.tar") // with the drivers of all buses
	if err == nil {
		_, err = os.Stat(image)
	}
	if err != nil {
		t.Fatalf("find the tiny guest (run config/images/build.sh tiny): %v", err)
	}
	cases, err := os.ReadDir(catalogue)
	if err != nil {
		t.Fatal(err)
	}
	booted := 0
	for _, c := range cases {
		text, err := os.ReadFile(filepath.Join(catalogue, c.Name(), "vmi.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var vmi v1.VirtualMachineInstance
		if err := yaml.UnmarshalStrict(text, &vmi); err != nil {
			t.Fatalf("%s: %v", c.Name(), err)
		}
		if _, err := os.Stat(filepath.Join(catalogue, c.Name(), "host.yaml")); err == nil || !isPlain(&vmi) {
			continue
		}
		booted++
		t.Run(c.Name(), func(t *testing.T) {
			t.Parallel()
			s := newStarted(t, bootable(t, string(text), &vmi), "--image", "registry.example/root:v1="+image).begin()
			s.out.Expect("tiny# ")
			s.press("modprobe -qa xhci_pci usb_storage ahci; for i in $(seq 100); do ls /sys/block | grep -q '[sv]da' && break; usleep 100000; done; echo DISKS $(ls /sys/block | grep -c '[sv]da') CARDS $(ls /sys/class/net | grep -vc lo) E''ND\n") // the echo of the keys is no answer
			s.out.Expect(" END\r\n")
			cards := len(vmi.Spec.Domain.Devices.Interfaces)
			if cards == 0 && !(vmi.Spec.Domain.Devices.AutoattachPodInterface != nil && !*vmi.Spec.Domain.Devices.AutoattachPodInterface) {
				cards = 1
			}
			if said, want := s.out.String(), "DISKS 1 CARDS "+string(rune('0'+cards))+" END"; !strings.Contains(said, want) {
				t.Errorf("the guest does not say %q:\n%s", want, said)
			}
			if f := vmi.Spec.Domain.Features; f != nil && f.ACPI.Enabled != nil && !*f.ACPI.Enabled {
				return // which cannot power itself off
			}
			s.press("poweroff -f\n")
			s.expectCode(0)
		})
	}
	if booted < 50 {
		t.Errorf("only %d machines of the catalogue are booted", booted)
	}
}

// bootable returns the manifest of a VMI that boots with this machine's QEMU.
//
// SeaBIOS boots only from disks with sectors of 512 bytes. With -boot strict=on it boots only from devices with a boot index, and a disk has none where only
// a card has a bootOrder. For such VMIs QEMU loads the kernel of the disk's image.
//
// Debian's generic kernel did not start from its disk in 64 or 96 MiB: a guest with less than 128 MiB has 64 MiB more.
//
// In a guest with -cpu max,svm=off, emulated by QEMU 7.2, glibc's loader fails an assertion, linkval[0] == '/'. With QEMU 11.1 the guest boots. Such a VMI
// keeps its svm.
func bootable(t *testing.T, text string, vmi *v1.VirtualMachineInstance) string {
	t.Helper()
	devices, changed := &vmi.Spec.Domain.Devices, false
	large := slices.ContainsFunc(devices.Disks, func(d v1.Disk) bool {
		return d.BlockSize != nil && d.BlockSize.Custom != nil && d.BlockSize.Custom.Logical > v1.MinBlockSize
	})
	unordered := slices.ContainsFunc(devices.Interfaces, func(i v1.Interface) bool { return i.BootOrder != nil }) &&
		!slices.ContainsFunc(devices.Disks, func(d v1.Disk) bool { return d.BootOrder != nil })
	if large || unordered {
		if vmi.Spec.Domain.Firmware == nil {
			vmi.Spec.Domain.Firmware = &v1.Firmware{}
		}
		vmi.Spec.Domain.Firmware.KernelBoot = &v1.KernelBoot{KernelArgs: "console=ttyS0", Container: &v1.KernelBootContainer{
			Image: vmi.Spec.Volumes[0].ContainerDisk.Image, KernelPath: "/boot/vmlinux", InitrdPath: "/boot/initrd"}}
		changed = true
	}
	if larger(&vmi.Spec.Domain) {
		changed = true
	}
	isSVM := func(f v1.CPUFeature) bool { return f.Name == "svm" }
	if cpu := vmi.Spec.Domain.CPU; cpu != nil && cpu.Model == "" && slices.ContainsFunc(cpu.Features, isSVM) && isQEMU7(t) {
		t.Log("THIS MACHINE'S QEMU 7 RUNS NO PROGRAMS WITH -cpu max,svm=off: THE GUEST KEEPS ITS svm")
		cpu.Features, changed = slices.DeleteFunc(cpu.Features, isSVM), true
	}
	if !changed {
		return text
	}
	manifest, err := yaml.Marshal(vmi)
	if err != nil {
		t.Fatal(err)
	}
	return string(manifest)
}

// larger gives a guest with less than 128 MiB of memory 64 MiB more, and reports whether it did.
func larger(d *v1.DomainSpec) bool {
	most, more, changed := resource.MustParse("128Mi"), resource.MustParse("64Mi"), false
	if d.Memory != nil && d.Memory.Guest != nil && d.Memory.Guest.Cmp(most) < 0 {
		d.Memory.Guest.Add(more)
		changed = true
	}
	for _, list := range []v1.ResourceList{d.Resources.Requests, d.Resources.Limits} {
		if q, ok := list[corev1.ResourceMemory]; ok && q.Cmp(most) < 0 {
			q.Add(more)
			list[corev1.ResourceMemory], changed = q, true
		}
	}
	return changed
}

// isQEMU7 reports whether the machine's QEMU is of the series 7.
func isQEMU7(t *testing.T) bool {
	t.Helper()
	version, err := exec.Command("qemu-system-x86_64", "--version").Output()
	if err != nil {
		t.Fatalf("ask QEMU for its version: %v", err)
	}
	return strings.Contains(string(version), "version 7.")
}

// isPlain reports whether a VMI needs nothing but its container disk: no claim, no node's CPU, card or huge pages. A guest without a serial console says nothing.
func isPlain(vmi *v1.VirtualMachineInstance) bool {
	spec := &vmi.Spec
	d := &spec.Domain
	for _, v := range spec.Volumes {
		if v.ContainerDisk == nil || v.Name != "root" {
			return false
		}
	}
	for _, n := range spec.Networks {
		if n.Pod == nil {
			return false
		}
	}
	return (spec.Architecture == "" || spec.Architecture == v1.AMD64) && len(spec.Volumes) == 1 && len(spec.AccessCredentials) == 0 &&
		(d.Devices.AutoattachSerialConsole == nil || *d.Devices.AutoattachSerialConsole) && d.TPM() == nil && d.UEFI() == nil && len(d.Devices.Filesystems) == 0 &&
		(d.Memory == nil || d.Memory.Hugepages == nil) && (d.CPU == nil || !d.CPU.Dedicated() && d.CPU.Model != "host") && (d.Firmware == nil || d.Firmware.KernelBoot == nil)
}
