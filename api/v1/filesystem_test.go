package v1

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// TestValidateFilesystemClaims: a file system on a claim that is a device is refused, and the refusal names the field, the claim and what to do.
// A claim of files, a claim of which nothing is known yet, and a disk on a device are not refused.
func TestValidateFilesystemClaims(t *testing.T) {
	vmi := &VirtualMachineInstance{}
	devices := &vmi.Spec.Domain.Devices
	for _, name := range []string{"files", "device", "unknown"} {
		devices.Filesystems = append(devices.Filesystems, Filesystem{Name: name, Virtiofs: &FilesystemVirtiofs{}})
	}
	status := func(volume string, mode corev1.PersistentVolumeMode) VolumeStatus {
		return VolumeStatus{Name: volume, PersistentVolumeClaimInfo: &PersistentVolumeClaimInfo{ClaimName: "claim-" + volume, VolumeMode: ptr.To(mode)}}
	}
	vmi.Status.VolumeStatus = []VolumeStatus{status("files", corev1.PersistentVolumeFilesystem), status("device", corev1.PersistentVolumeBlock), status("disk", corev1.PersistentVolumeBlock),
		{Name: "unknown"}}
	errs := ValidateFilesystemClaims(vmi)
	if len(errs) != 1 {
		t.Fatalf("%d errors, want one: %v", len(errs), errs)
	}
	for _, want := range []string{"spec.domain.devices.filesystems[1].name", `"device"`, "claim-device", "volumeMode: Block", "use a claim of mode Filesystem, or a disk"} {
		if !strings.Contains(errs[0].Error(), want) {
			t.Errorf("%v does not name %q", errs[0], want)
		}
	}
}

// TestValidateFilesystems: each mistake of devices.filesystems is refused by its field.
func TestValidateFilesystems(t *testing.T) {
	share := func(name string) Filesystem { return Filesystem{Name: name, Virtiofs: &FilesystemVirtiofs{}} }
	volumes := []Volume{
		{Name: "claim", PersistentVolumeClaim: &PersistentVolumeClaimVolumeSource{ClaimName: "c"}},
		{Name: "settings", ConfigMap: &ConfigMapVolumeSource{}},
		{Name: "scratch", EmptyDisk: &EmptyDiskSource{}},
		{Name: "both", Secret: &SecretVolumeSource{}},
	}
	for name, c := range map[string]struct {
		list []Filesystem
		want []string // the fields, in order
	}{
		"right":     {[]Filesystem{share("claim"), share("settings")}, nil},
		"twice":     {[]Filesystem{share("claim"), share("claim")}, []string{"fs[1].name"}},
		"no kind":   {[]Filesystem{{Name: "claim"}}, []string{"fs[0].virtiofs"}},
		"no volume": {[]Filesystem{share("other")}, []string{"fs[0].name"}},
		"long":      {[]Filesystem{share(strings.Repeat("a", maxFilesystemName+1))}, []string{"fs[0].name", "fs[0].name"}},
		"no files":  {[]Filesystem{share("scratch")}, []string{"fs[0].name"}},
		"a disk":    {[]Filesystem{share("both")}, []string{"fs[0].name"}},
		"too many":  {make([]Filesystem, maxFilesystems+1), []string{"fs"}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := &VirtualMachineInstanceSpec{Volumes: volumes}
			spec.Domain.Devices.Disks, spec.Domain.Devices.Filesystems = []Disk{{Name: "both"}}, c.list
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
