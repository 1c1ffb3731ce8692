package e2e

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestKernelBoot: a guest without any disk or interface boots the kernel of a
// container image, which is packed, as users have it. Most tests' is not.
func TestKernelBoot(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	v := create(t, ns, &v1.VirtualMachineInstance{
		TypeMeta:   metav1.TypeMeta{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance"},
		ObjectMeta: metav1.ObjectMeta{Name: "kernel-boot"},
		Spec: v1.VirtualMachineInstanceSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			Domain: v1.DomainSpec{
				Resources: v1.ResourceRequirements{Requests: v1.ResourceList{"memory": resource.MustParse("128Mi")}},
				Firmware: &v1.Firmware{KernelBoot: &v1.KernelBoot{
					KernelArgs: "console=ttyS0 quiet no_timer_check kubeqemu=seen",
					Container:  &v1.KernelBootContainer{Image: tinyImage, KernelPath: "/boot/vmlinuz", InitrdPath: "/boot/initrd"},
				}},
				Devices: v1.Devices{AutoattachPodInterface: ptr.To(false)},
			},
		},
	})
	v.await(v1.Running)
	run := v.runner()
	if line := run("cat /proc/cmdline"); !strings.Contains(line, "kubeqemu=seen") {
		t.Errorf("the kernel's command line is %q", line)
	}
	if links := run("ls /sys/class/net"); strings.Contains(links, "eth0") {
		t.Errorf("a guest without interfaces has %q", links)
	}
	if status := v.get().Status; len(status.Interfaces) != 0 {
		t.Errorf("status.interfaces of a guest without interfaces: %+v", status.Interfaces)
	}
}

// TestGuestWithEveryCoreDevice: one guest with everything of the core spec that it can look at.
func TestGuestWithEveryCoreDevice(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	apply(t, ns, `
apiVersion: v1
kind: Secret
metadata: {name: user}
stringData: {userdata: "#cloud-config from a Secret\n", other: "not the guest's"}
---
apiVersion: v1
kind: Secret
metadata: {name: network}
stringData: {networkdata: "version: 2\n"}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {a: "ssh-ed25519 AAAA first\n", b: "ssh-rsa BBBB second\n"}
`)
	v := create(t, ns, tiny("devices", bootsKernel, func(s *v1.VirtualMachineInstanceSpec) {
		s.Hostname = "renamed"
		s.EvictionStrategy = ptr.To(v1.EvictionStrategyNone)
		s.Tolerations = []corev1.Toleration{{Key: "edge", Operator: corev1.TolerationOpExists}}
		s.Domain.CPU = &v1.CPU{Cores: 2}
		s.Domain.Clock = &v1.Clock{Timer: &v1.Timer{HPET: &v1.HPETTimer{Present: ptr.To(false)}, PIT: &v1.PITTimer{TickPolicy: "delay"},
			RTC: &v1.RTCTimer{TickPolicy: "catchup"}, Hyperv: &v1.PresentTimer{}}}
		d := &s.Domain.Devices
		d.Rng = &v1.Rng{}
		d.Watchdog = &v1.Watchdog{Name: "dog"}
		d.NetworkInterfaceMultiQueue, d.BlockMultiQueue, d.LogSerialConsole = ptr.To(true), ptr.To(true), ptr.To(false)
		d.AutoattachGraphicsDevice, d.Video = nil, &v1.VideoDevice{Type: "virtio"}
		d.Inputs = []v1.Input{{Name: "tablet", Type: "tablet", Bus: "virtio"}, {Name: "usb", Type: "tablet"}}
		d.Disks = append(d.Disks, v1.Disk{Name: "scratch", Serial: "SCRATCH", Disk: &v1.DiskTarget{Bus: v1.DiskBusSCSI}},
			v1.Disk{Name: "seed", CDRom: &v1.CDRomTarget{Bus: v1.DiskBusSCSI}})
		s.Volumes = append(s.Volumes, v1.Volume{Name: "scratch", EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse("64Mi")}},
			v1.Volume{Name: "seed", CloudInitNoCloud: &v1.CloudInitNoCloudSource{
				UserDataSecretRef: &corev1.LocalObjectReference{Name: "user"}, NetworkDataSecretRef: &corev1.LocalObjectReference{Name: "network"}}})
		d.Disks = append(d.Disks, v1.Disk{Name: "drive", Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}})
		s.Volumes = append(s.Volumes, v1.Volume{Name: "drive", CloudInitConfigDrive: &v1.CloudInitConfigDriveSource{UserData: "#cloud-config of a drive\n", NetworkData: `{"links":[]}`}})
		for _, method := range []v1.SSHPublicKeyAccessCredentialPropagationMethod{{NoCloud: &v1.NoCloudSSHPublicKeyAccessCredentialPropagation{}},
			{ConfigDrive: &v1.ConfigDriveSSHPublicKeyAccessCredentialPropagation{}}} {
			source := v1.SSHPublicKeyAccessCredentialSource{Secret: &v1.AccessCredentialSecretSource{SecretName: "keys"}}
			s.AccessCredentials = append(s.AccessCredentials, v1.AccessCredential{SSHPublicKey: &v1.SSHPublicKeyAccessCredential{Source: source, PropagationMethod: method}})
		}
	}))
	status := v.await(v1.Running).Status
	if got := status.Interfaces[0].QueueCount; got != 2 {
		t.Errorf("queueCount %d, want 2", got)
	}
	run := v.runner()
	// The shell may be there before the seed is read.
	run("for i in $(seq 15); do test -e /mnt/cloud-init/user-data && break; sleep 1; done")
	run("mkdir /tmp/drive && mount -o ro $(findfs LABEL=config-2) /tmp/drive")
	for command, want := range map[string]string{
		"cat /mnt/cloud-init/meta-data":                     `"public-keys":{"0":"ssh-ed25519 AAAA first","1":"ssh-rsa BBBB second"}`,
		"cat /tmp/drive/openstack/latest/meta_data.json":    `"public_keys":{"0":"ssh-ed25519 AAAA first","1":"ssh-rsa BBBB second"}`,
		"cat /tmp/drive/openstack/latest/user_data":         "#cloud-config of a drive",
		"cat /tmp/drive/openstack/latest/network_data.json": `{"links":[]}`,
		"cat /sys/block/sda/size":                           "131072", // sectors of 512 bytes
		"cat /mnt/cloud-init/user-data":                     "#cloud-config from a Secret",
		"cat /mnt/cloud-init/network-config":                "version: 2",
		"ls /mnt/cloud-init":                                "user-data",
		"hostname":                                          "renamed",
		"nproc":                                             "2",
		"ls /sys/class/net/eth0/queues":                     "rx-1",
		"cat /sys/class/misc/hw_random/rng_available":       "virtio",
		"cat /sys/bus/pci/devices/*/device":                 "0x1045", // the balloon
	} {
		if got := run(command); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q in it", command, got, want)
		}
	}
	if devices := run("cat /sys/bus/pci/devices/*/device | tr '\\n' ' '"); !strings.Contains(devices, "0x25ab") || !strings.Contains(devices, "0x1050") || !strings.Contains(devices, "0x1052") {
		t.Errorf("PCI devices %s, want the watchdog 0x25ab, virtio's graphics card 0x1050 and its tablet 0x1052", devices)
	}
	if clocks := run("cat /sys/devices/system/clocksource/clocksource0/available_clocksource"); strings.Contains(clocks, "hpet") {
		t.Errorf("clock sources %q, want no hpet", clocks)
	}
	run("echo written | dd of=/dev/sda conv=fsync 2>/dev/null")
	if got := run("head -c 7 /dev/sda"); !strings.Contains(got, "written") {
		t.Errorf("the empty disk holds %q, want what was written", got)
	}
	if log := kubectl(t, "-n", ns, "logs", v.pod().Name); strings.Contains(log, "tiny:") {
		t.Errorf("logSerialConsole is false, and the pod's log has the guest's output:\n%s", log)
	}
}

// TestStartPaused: a guest that starts paused is Running, and its CPUs are not.
func TestStartPaused(t *testing.T) {
	t.Parallel()
	v := create(t, namespace(t), tiny("paused", bootsKernel, func(s *v1.VirtualMachineInstanceSpec) { s.StartStrategy = v1.StartStrategyPaused }))
	v.await(v1.Running)
	v.awaitCondition(v1.ConditionPaused, "Paused")
	if ready := v.condition(v1.ConditionReady); ready.Status != metav1.ConditionFalse {
		t.Errorf("Ready is %+v, want False", ready)
	}
	if took := v.delete(); took > 20*time.Second {
		t.Errorf("deletion took %s", took)
	}
}

// runner gives what commands print in a tiny guest.
func (v vmi) runner() func(command string) string {
	shell := v.shell()
	return func(command string) string {
		v.t.Helper()
		out, status := shell.run(command)
		if status != 0 {
			v.t.Errorf("in the guest: %s: exit status %d: %s", command, status, out)
		}
		return out
	}
}
