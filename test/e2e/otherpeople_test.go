package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// applied applies an object as a person would, and returns what kubectl printed, warnings too.
func applied(t *testing.T, namespace string, object any, args ...string) (string, error) {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "kubectl", append([]string{"-n", namespace, "apply", "-f", "-"}, args...)...)
	cmd.Stdin = strings.NewReader(string(text))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// wrapped is a text in base64, with a line break after each four characters.
func wrapped(text string) string {
	var b strings.Builder
	encoded := base64.StdEncoding.EncodeToString([]byte(text))
	for i := 0; i < len(encoded); i += 4 {
		b.WriteString(encoded[i:i+4] + "\n")
	}
	return b.String()
}

// TestManifestsWrittenForKubeVirtRun: a manifest that was written for KubeVirt on RHEL, or long ago, is taken, and kubectl shows a Warning for each field
// that acts otherwise here. The guest finds the devices and files that its manifest names. A limit below the guest's memory is refused, and so are a
// request without a limit and a serial number that is too long for usb.
func TestManifestsWrittenForKubeVirtRun(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	userData := "#cloud-config\n# " + strings.Repeat("x", 2000) + "\n"
	const serial = "usb-20-characters-on"
	hold(t, ns, object(t, "ConfigMap", "cd", map[string]string{"text": "on the CD-ROM"}))
	usb, cd := hardDisk(v1.DiskBusUSB), cdrom(v1.DiskBusSATA)
	usb.Serial, cd.CDRom.ReadOnly = serial, ptr.To(false)
	written := tiny("written", onSATA, bootsKernel, offline, func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Machine = &v1.Machine{Type: "pc-q35-rhel8.6.0"}
		s.Domain.Resources.Requests = v1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi"), "devices.kubevirt.io/kvm": resource.MustParse("1")}
		s.Domain.Resources.Limits = v1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Ei")}
	}, files(usb, v1.Volume{Name: "usb", EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse("20Ti")}}),
		files(cd, v1.Volume{Name: "cd", ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cd"}}}),
		files(hardDisk(v1.DiskBusVirtio), v1.Volume{Name: "seed", CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserDataBase64: wrapped(userData)}}))
	out, err := applied(t, ns, written)
	if err != nil {
		t.Fatal(err, out)
	}
	for _, warning := range []string{"spec.domain.machine.type: pc-q35-rhel8.6.0 runs as pc-q35-", "spec.domain.resources.requests[devices.kubevirt.io/kvm] has no effect", "spec.domain.devices.disks[2].cdrom.readonly has no effect"} {
		if !strings.Contains(out, "Warning: "+warning) {
			t.Errorf("kubectl apply does not warn of %q:\n%s", warning, out)
		}
	}
	v := vmi{t: t, namespace: ns, name: "written"}
	if m := v.await(v1.Running).Status.Machine; m == nil || !strings.Contains(out, "pc-q35-rhel8.6.0 runs as "+m.Type) {
		t.Errorf("the machine is %+v", m)
	}
	if c := v.condition(v1.ConditionLiveMigratable); c.Status != metav1.ConditionTrue {
		t.Errorf("LiveMigratable is %+v", c)
	}
	shell := v.shell()
	v.in(shell, "modprobe -qa xhci_pci usb_storage isofs; for i in $(seq 300); do [ -e /sys/block/sda ] && [ -e /sys/block/sr0 ] && break; usleep 100000; done; mkdir -p /tmp/cd; mount -o ro /dev/sr0 /tmp/cd")
	for command, want := range map[string]string{
		"cat /sys/block/sda/device/../../../../serial": serial,
		"blockdev --getsize64 /dev/sda":                fmt.Sprint(20 << 40),
		"cat /tmp/cd/text":                             "on the CD-ROM",
		"md5sum </mnt/cloud-init/user-data":            sum(userData) + "  -",
	} {
		if got := v.in(shell, command); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}

	for want, edit := range map[string]func(*v1.VirtualMachineInstanceSpec){
		"spec.domain.resources.limits[memory]": func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.Resources.Limits = v1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
		},
		"spec.domain.resources.limits[example.com/fpga]": func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.Resources.Requests = v1.ResourceList{"example.com/fpga": resource.MustParse("1")}
		},
		"spec.domain.devices.disks[0].serial": func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.Devices.Disks[0].Disk.Bus, s.Domain.Devices.Disks[0].Serial = v1.DiskBusUSB, serial+"e"
		},
	} {
		if out, err := applied(t, ns, tiny("refused", edit)); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s is not refused: %s", want, out)
		}
	}
	kubectl(t, "-n", "kubevirt", "patch", "kubevirt", "kubevirt", "--type=merge", "--dry-run=server", "--patch", `{"spec":{"configuration":{"migrations":{"completionTimeoutPerGiB":123456789}}}}`)
}
