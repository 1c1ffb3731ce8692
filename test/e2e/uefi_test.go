package e2e

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// uefi has a guest start with UEFI.
func uefi(efi v1.EFI) func(*v1.VirtualMachineInstanceSpec) {
	return func(s *v1.VirtualMachineInstanceSpec) {
		if s.Domain.Firmware == nil {
			s.Domain.Firmware = &v1.Firmware{}
		}
		s.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("256Mi"))}
		s.Domain.Firmware.Bootloader = &v1.Bootloader{EFI: &efi}
		if efi.Secure() {
			s.Domain.Features = &v1.Features{SMM: &v1.FeatureState{}}
		}
	}
}

// variables is where the tiny guest has its UEFI variables, and ours is the vendor of those that the tests make (a GUID).
const (
	variables = "/sys/firmware/efi/efivars"
	ours      = "-6b756265-7165-4d75-8000-00000000000e"
	mounts    = "modprobe efivarfs; mountpoint -q " + variables + " || mount -t efivarfs e " + variables
)

// keep makes a UEFI variable in a tiny guest, which is of the kind that outlives the guest's power (attributes 7).
func keep(name, value string) string {
	return fmt.Sprintf(`printf '\007\000\000\000%s' >%s/%s%s`, value, variables, name, ours)
}

// kept prints the variable.
func kept(name string) string { return fmt.Sprintf("tail -c +5 %s/%s%s", variables, name, ours) }

// reboot reboots a tiny guest from inside, and returns a runner for the guest that came up.
func (v vmi) reboot(log *transcript) func(command string) string {
	v.t.Helper()
	v.shell().send("reboot\n")
	log.expect("tiny: bye")
	log.expect("tiny: up")
	run := v.runner()
	run(mounts)
	return run
}

// TestUEFI: a guest starts by UEFI from the disk that the BIOS boots too. A UEFI variable that the guest makes outlives the
// guest's reboot, and not the VMI.
func TestUEFI(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	m := createVM(t, ns, "uefi", v1.RunStrategyAlways, uefi(v1.EFI{SecureBoot: ptr.To(false)}))
	first := m.runs("")
	log := m.log()
	log.expect("tiny: up")
	run := m.runner()
	run(mounts)
	if line := run("cat /proc/cmdline"); !strings.Contains(line, "initrd=\\initrd") {
		t.Errorf("the kernel's command line is %q, which is not the one of UEFI's loader", line)
	}
	run(keep("Kept", "for the reboot"))
	m.reboot(log)
	run = m.runner()
	if got := run(kept("Kept")); !strings.Contains(got, "for the reboot") {
		t.Errorf("after the reboot the variable is %q", got)
	}
	m.asks(stopIt(first), startIt)
	m.runs(first)
	m.log().expect("tiny: up")
	run = m.runner()
	run(mounts)
	if got := run("ls " + variables); !strings.Contains(got, "BootOrder") || strings.Contains(got, "Kept") {
		t.Errorf("the next VMI has the variables %q", got)
	}
}

// TestUEFIKernelBoot: UEFI starts the kernel of a container image.
func TestUEFIKernelBoot(t *testing.T) {
	t.Parallel()
	v := create(t, namespace(t), &v1.VirtualMachineInstance{
		TypeMeta:   metav1.TypeMeta{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance"},
		ObjectMeta: metav1.ObjectMeta{Name: "uefi-kernel"},
		Spec: v1.VirtualMachineInstanceSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			Domain: v1.DomainSpec{
				Memory: &v1.Memory{Guest: ptr.To(resource.MustParse("256Mi"))},
				Firmware: &v1.Firmware{
					Bootloader: &v1.Bootloader{EFI: &v1.EFI{SecureBoot: ptr.To(false)}},
					KernelBoot: &v1.KernelBoot{KernelArgs: "console=ttyS0 quiet no_timer_check kubeqemu=seen",
						Container: &v1.KernelBootContainer{Image: tinyImage, KernelPath: "/boot/vmlinuz", InitrdPath: "/boot/initrd"}}},
				Devices: v1.Devices{AutoattachPodInterface: ptr.To(false)},
			},
		},
	})
	v.await(v1.Running)
	v.log().expect("tiny: up")
	run := v.runner()
	if got := run("ls /sys/firmware/efi; cat /proc/cmdline"); !strings.Contains(got, "runtime") || !strings.Contains(got, "kubeqemu=seen") {
		t.Errorf("the guest has %q", got)
	}
}

// TestSecureBoot: a guest whose loaders and kernel are signed starts with secure boot and says so. The firmware refuses a
// loader that nobody has signed.
func TestSecureBoot(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	unsigned := create(t, ns, tiny("unsigned", uefi(v1.EFI{})))
	signed := create(t, ns, tiny("signed", uefi(v1.EFI{SecureBoot: ptr.To(true)}), func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Memory.Guest = ptr.To(resource.MustParse("512Mi"))
		s.Volumes[0].ContainerDisk.Image = "localhost/kubeqemu/debian-container-disk:dev"
	}, cloudInit(`#cloud-config
runcmd:
- "echo secure boot is $(od -An -tx1 /sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c) >/dev/ttyS0"
- "echo lockdown is $(cat /sys/kernel/security/lockdown) >/dev/ttyS0"
`)))
	unsigned.await(v1.Running)
	unsigned.log().expect("Access Denied")
	signed.await(v1.Running)
	log := signed.log()
	log.expect("secure boot is 06 00 00 00 01")
	log.expect(`lockdown is none \[integrity\]`)
}

// TestMigrationUEFI: a guest takes its UEFI variables to another node, where they outlive its reboot.
func TestMigrationUEFI(t *testing.T) {
	newSecondNode(t)
	ns := namespace(t)
	m := createVM(t, ns, "uefi", v1.RunStrategyAlways, uefi(v1.EFI{SecureBoot: ptr.To(false)}))
	m.runs("")
	m.log().expect("tiny: up")
	run := m.runner()
	run(mounts)
	run(keep("Source", "made before the migration"))
	source := m.get().Status.NodeName
	m.migrate("move", nil).ends(v1.MigrationSucceeded)
	if target := m.get().Status.NodeName; target == source {
		t.Fatalf("the guest is on %s still", target)
	}
	run = m.runner()
	run(keep("Target", "made after the migration"))
	log := m.log()
	m.reboot(log)
	run = m.runner()
	for name, want := range map[string]string{"Source": "made before the migration", "Target": "made after the migration"} {
		if got := run(kept(name)); !strings.Contains(got, want) {
			t.Errorf("after migration and reboot the variable %s is %q", name, got)
		}
	}
}
