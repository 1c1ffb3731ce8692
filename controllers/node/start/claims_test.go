package start

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// TestWhichClaimsAreGuestDisks: the launcher inspects the claims of disks, once it is known of each what it is.
func TestWhichClaimsAreGuestDisks(t *testing.T) {
	claim := func(name string) *v1.PersistentVolumeClaimVolumeSource {
		return &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}
	}
	vmi := &v1.VirtualMachineInstance{}
	vmi.Spec.Volumes = []v1.Volume{
		{Name: "root", ContainerDisk: &v1.ContainerDiskSource{Image: "x"}},
		{Name: "data", PersistentVolumeClaim: claim("a")},
		{Name: "raw", PersistentVolumeClaim: claim("b")},
		{Name: "tools", PersistentVolumeClaim: claim("c")},
		{Name: "template", Ephemeral: &v1.EphemeralVolumeSource{PersistentVolumeClaim: &v1.EphemeralClaim{ClaimName: "d"}}},
	}
	for _, v := range vmi.Spec.Volumes {
		vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, v1.Disk{Name: v.Name, Disk: &v1.DiskTarget{}})
	}
	vmi.Spec.Domain.Devices.Disks[3] = v1.Disk{Name: "tools", CDRom: &v1.CDRomTarget{}}
	if got, err := claims(vmi); err == nil {
		t.Errorf("before anything is known of them: %+v", got)
	}
	for _, name := range []string{"data", "raw", "tools", "template"} {
		info := &v1.PersistentVolumeClaimInfo{Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}
		if name == "raw" {
			info.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		}
		vmi.Status.VolumeStatus = append(vmi.Status.VolumeStatus,
			v1.VolumeStatus{Name: name, PersistentVolumeClaimInfo: info})
	}
	got, err := claims(vmi)
	want := []control.Claim{{Volume: "data"}, {Volume: "raw", Block: true}, {Volume: "tools", ReadOnly: true},
		{Volume: "template", ReadOnly: true}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	vmi.Status.VolumeStatus[1].PersistentVolumeClaimInfo.Capacity = nil // not bound yet
	if got, err := claims(vmi); err == nil {
		t.Errorf("one is not bound: %+v", got)
	}
}
