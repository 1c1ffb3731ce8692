package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const tinyImage = "localhost/kubeqemu/tiny-virtio-container-disk:dev"

// tiny is a VMI of the tiny guest, which ends at once when it is deleted.
func tiny(name string, edits ...func(*v1.VirtualMachineInstanceSpec)) *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{
		TypeMeta:   metav1.TypeMeta{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.VirtualMachineInstanceSpec{
			Domain: v1.DomainSpec{
				Memory: &v1.Memory{Guest: ptr.To(resource.MustParse("128Mi"))},
				Devices: v1.Devices{
					Disks:                    []v1.Disk{{Name: "root", Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}},
					Interfaces:               []v1.Interface{{Name: "default", Masquerade: &v1.InterfaceMasquerade{}}},
					AutoattachGraphicsDevice: ptr.To(false),
				},
			},
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			Networks:                      []v1.Network{{Name: "default", Pod: &v1.PodNetwork{}}},
			Volumes:                       []v1.Volume{{Name: "root", ContainerDisk: &v1.ContainerDiskSource{Image: tinyImage}}},
		},
	}
	for _, edit := range edits {
		edit(&vmi.Spec)
	}
	return vmi
}

// tinyKernel is the kernel of the tiny guest's image, as kernelBoot names it. It is unpacked: an emulated CPU needs a second
// to unpack /boot/vmlinuz. UEFI takes vmlinuz alone.
const tinyKernel = `{container: {image: "` + tinyImage + `", kernelPath: /boot/vmlinux, initrdPath: /boot/initrd}, kernelArgs: ` + tinyArgs + `}`

// tinyArgs are what the boot loader of the tiny guest's disk tells its kernel.
const tinyArgs = "console=ttyS0 quiet nokaslr cryptomgr.notests mitigations=off no_timer_check"

// bootsKernel has QEMU load the kernel of the first volume's image; an edit of that volume comes before. The BIOS reads a kernel from
// a disk in some 600 steps, and an emulated CPU waits busily at each: beside four others a guest's start takes 7 to 9 s of CPU time
// that way, and 3 to 4 s this way. Tests that do not look at how a guest loads its kernel do without the disk.
func bootsKernel(s *v1.VirtualMachineInstanceSpec) {
	s.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{
		KernelArgs: tinyArgs,
		Container:  &v1.KernelBootContainer{Image: s.Volumes[0].ContainerDisk.Image, KernelPath: "/boot/vmlinux", InitrdPath: "/boot/initrd"},
	}}
}

func grace(seconds int64) func(*v1.VirtualMachineInstanceSpec) {
	return func(s *v1.VirtualMachineInstanceSpec) { s.TerminationGracePeriodSeconds = &seconds }
}

// cloudInit adds a NoCloud seed.
func cloudInit(userData string) func(*v1.VirtualMachineInstanceSpec) {
	return func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Devices.Disks = append(s.Domain.Devices.Disks, v1.Disk{Name: "seed", Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}})
		s.Volumes = append(s.Volumes, v1.Volume{Name: "seed", CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserData: userData}})
	}
}

// ignoreACPI is user data that makes the tiny guest deaf to the power button.
const ignoreACPI = "#tiny: ignore-acpi\n"

// ports lists the ports on which the guest is reached.
func ports(numbers ...int32) func(*v1.VirtualMachineInstanceSpec) {
	return func(s *v1.VirtualMachineInstanceSpec) {
		for _, n := range numbers {
			s.Domain.Devices.Interfaces[0].Ports = append(s.Domain.Devices.Interfaces[0].Ports, v1.Port{Port: n})
		}
	}
}

// vmi is a VirtualMachineInstance on the cluster.
type vmi struct {
	t               *testing.T
	namespace, name string
}

func create(t *testing.T, namespace string, object *v1.VirtualMachineInstance) vmi {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	apply(t, namespace, string(text))
	return vmi{t: t, namespace: namespace, name: object.Name}
}

func (v vmi) get() *v1.VirtualMachineInstance {
	v.t.Helper()
	return get[v1.VirtualMachineInstance](v.t, "-n", v.namespace, "vmi", v.name)
}

// await waits until the VMI is in the phase, and returns it. Another final
// phase fails the test at once.
func (v vmi) await(want v1.VirtualMachineInstancePhase) *v1.VirtualMachineInstance {
	v.t.Helper()
	err := poll(func() error {
		now, err := getObject[v1.VirtualMachineInstance]("-n", v.namespace, "vmi", v.name)
		if err == nil && now.Status.Phase != want && now.Status.Phase != v1.Succeeded && now.Status.Phase != v1.Failed {
			err = fmt.Errorf("it is %s", now.Status.Phase)
		}
		return err
	})
	last := v.get()
	if last.Status.Phase == want {
		return last
	}
	v.t.Fatalf("VMI %s is %s, want %s (%v): %+v", v.name, last.Status.Phase, want, err, last.Status)
	return nil
}

// delete deletes the VMI and returns how long it took until it was gone.
func (v vmi) delete() time.Duration {
	v.t.Helper()
	start := time.Now()
	kubectl(v.t, "-n", v.namespace, "delete", "vmi", v.name, "--timeout=600s")
	return time.Since(start)
}

// pod is the launcher pod that has the VMI's guest, by its name and the UID in the status: labels can be
// anyone's.
func (v vmi) pod() *corev1.Pod {
	v.t.Helper()
	now := v.get()
	pods := get[corev1.PodList](v.t, "-n", v.namespace, "pods", "-l", "kubevirt.io=virt-launcher")
	for i := range pods.Items {
		if _, ok := now.Status.ActivePods[pods.Items[i].UID]; ok && pods.Items[i].Name == now.LauncherPod() {
			return &pods.Items[i]
		}
	}
	v.t.Fatalf("VMI %s: its pod %s is not among its active pods %v, or not there", v.name, now.LauncherPod(), now.Status.ActivePods)
	return nil
}

func (v vmi) condition(kind v1.ConditionType) v1.VirtualMachineInstanceCondition {
	v.t.Helper()
	if c := v.get().Status.Condition(kind); c != nil {
		return *c
	}
	return v1.VirtualMachineInstanceCondition{}
}

// awaitCondition waits for a condition whose reason and message hold the words.
func (v vmi) awaitCondition(kind v1.ConditionType, words ...string) {
	v.t.Helper()
	err := poll(func() error {
		c := v.condition(kind)
		for _, word := range words {
			if !strings.Contains(c.Reason+": "+c.Message, word) {
				return fmt.Errorf("condition %s of VMI %s is %q: %q, want %q in it", kind, v.name, c.Reason, c.Message, words)
			}
		}
		return nil
	})
	if err != nil {
		v.t.Error(err)
	}
}

// events are the VMI's, in order.
func (v vmi) events() []corev1.Event {
	v.t.Helper()
	list := get[corev1.EventList](v.t, "-n", v.namespace, "events",
		"--field-selector=involvedObject.kind=VirtualMachineInstance,involvedObject.name="+v.name)
	slices.SortFunc(list.Items, func(a, b corev1.Event) int { return a.EventTime.Compare(b.EventTime.Time) })
	return list.Items
}

// awaitEvents waits until the VMI has these events, in this order; others may
// be between them.
func (v vmi) awaitEvents(reasons ...string) {
	v.t.Helper()
	err := poll(func() error {
		var have []string
		missing := reasons
		for _, e := range v.events() {
			have = append(have, e.Reason)
			if len(missing) > 0 && e.Reason == missing[0] {
				missing = missing[1:]
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("events of VMI %s are %v, want %v in this order", v.name, have, reasons)
		}
		return nil
	})
	if err != nil {
		v.t.Error(err)
	}
}

// event is the message of the VMI's event of the reason.
func (v vmi) event(reason string) string {
	v.t.Helper()
	for _, e := range v.events() {
		if e.Reason == reason {
			return e.Message
		}
	}
	return ""
}
