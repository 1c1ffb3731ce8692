package validation

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestValidateFilesystemClaims: a file system on a claim that is a device is refused, and the refusal names the field,
// the claim and what to do. A claim of files, a claim of which nothing is known yet, and a disk on a device are not
// refused.
func TestValidateFilesystemClaims(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	devices := &vmi.Spec.Domain.Devices
	for _, name := range []string{"files", "device", "unknown"} {
		devices.Filesystems = append(devices.Filesystems, v1.Filesystem{Name: name, Virtiofs: &v1.FilesystemVirtiofs{}})
	}
	status := func(volume string, mode corev1.PersistentVolumeMode) v1.VolumeStatus {
		return v1.VolumeStatus{Name: volume,
			PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "claim-" + volume, VolumeMode: ptr.To(mode)}}
	}
	vmi.Status.VolumeStatus = []v1.VolumeStatus{status("files", corev1.PersistentVolumeFilesystem),
		status("device", corev1.PersistentVolumeBlock), status("disk", corev1.PersistentVolumeBlock),
		{Name: "unknown"}}
	errs := ValidateFilesystemClaims(vmi)
	if len(errs) != 1 {
		t.Fatalf("%d errors, want one: %v", len(errs), errs)
	}
	for _, want := range []string{"spec.domain.devices.filesystems[1].name", `"device"`, "claim-device",
		"volumeMode: Block", "use a claim of mode Filesystem, or a disk"} {
		if !strings.Contains(errs[0].Error(), want) {
			t.Errorf("%v does not name %q", errs[0], want)
		}
	}
}

// TestValidateFilesystems: each mistake of devices.filesystems is refused by its field.
func TestValidateFilesystems(t *testing.T) {
	share := func(name string) v1.Filesystem { return v1.Filesystem{Name: name, Virtiofs: &v1.FilesystemVirtiofs{}} }
	volumes := []v1.Volume{
		{Name: "claim", PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}},
		{Name: "settings", ConfigMap: &v1.ConfigMapVolumeSource{}},
		{Name: "scratch", EmptyDisk: &v1.EmptyDiskSource{}},
		{Name: "both", Secret: &v1.SecretVolumeSource{}},
	}
	for name, c := range map[string]struct {
		list []v1.Filesystem
		want []string // the fields, in order
	}{
		"right":     {[]v1.Filesystem{share("claim"), share("settings")}, nil},
		"twice":     {[]v1.Filesystem{share("claim"), share("claim")}, []string{"fs[1].name"}},
		"no kind":   {[]v1.Filesystem{{Name: "claim"}}, []string{"fs[0].virtiofs"}},
		"no volume": {[]v1.Filesystem{share("other")}, []string{"fs[0].name"}},
		"long":      {[]v1.Filesystem{share(strings.Repeat("a", maxFilesystemName+1))}, []string{"fs[0].name", "fs[0].name"}},
		"no files":  {[]v1.Filesystem{share("scratch")}, []string{"fs[0].name"}},
		"a disk":    {[]v1.Filesystem{share("both")}, []string{"fs[0].name"}},
		"too many":  {make([]v1.Filesystem, maxFilesystems+1), []string{"fs"}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := &v1.VirtualMachineInstanceSpec{Volumes: volumes}
			spec.Domain.Devices.Disks, spec.Domain.Devices.Filesystems = []v1.Disk{{Name: "both"}}, c.list
			var got []string
			for _, err := range validateFilesystems(spec, field.NewPath("fs")) {
				got = append(got, err.Field)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("refused %v, want %v", got, c.want)
			}
		})
	}
}
