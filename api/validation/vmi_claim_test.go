package validation

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func TestValidateClaim(t *testing.T) {
	claim := func(source v1.PersistentVolumeClaimVolumeSource, disk v1.Disk) func(*spec) {
		return func(s *spec) {
			s.Volumes[2] = v1.Volume{Name: "seed", PersistentVolumeClaim: &source}
			disk.Name = "seed"
			s.Domain.Devices.Disks[2] = disk
			setDefaults(s)
		}
	}
	edits{
		"a claim": {claim(v1.PersistentVolumeClaimVolumeSource{ClaimName: "data.1"}, v1.Disk{}), ""},
		"no name": {claim(v1.PersistentVolumeClaimVolumeSource{}, v1.Disk{}), ".claimName"},
		"a path":  {claim(v1.PersistentVolumeClaimVolumeSource{ClaimName: "../data"}, v1.Disk{}), ".claimName"},
		"hotpluggable": {claim(v1.PersistentVolumeClaimVolumeSource{ClaimName: "data", Hotpluggable: true},
			v1.Disk{}), ".hotpluggable"},
		"read-only as a CD-ROM": {claim(v1.PersistentVolumeClaimVolumeSource{ClaimName: "data", ReadOnly: true},
			v1.Disk{CDRom: &v1.CDRomTarget{}}), ""},
		"read-only on SATA": {claim(v1.PersistentVolumeClaimVolumeSource{ClaimName: "data", ReadOnly: true}, v1.Disk{}),
			"spec.domain.devices.disks[2].disk.bus"},
	}.try(t, "spec.volumes[2].persistentVolumeClaim")
}

// TestValidateSourceOnClaim: a claim, also below an overlay, has a name that is no path.
func TestValidateSourceOnClaim(t *testing.T) {
	for _, tt := range []struct {
		volume v1.Volume
		errs   int
	}{
		{v1.Volume{EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse("1Mi")}}, 0},
		{v1.Volume{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "a"}}, 0},
		{v1.Volume{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "a", ReadOnly: true}}, 0},
		{v1.Volume{Ephemeral: &v1.EphemeralVolumeSource{PersistentVolumeClaim: &v1.EphemeralClaim{ClaimName: "a"}}}, 0},
		{v1.Volume{Ephemeral: &v1.EphemeralVolumeSource{PersistentVolumeClaim: &v1.EphemeralClaim{ClaimName: "a",
			ReadOnly: true}}}, 0},
		{v1.Volume{Ephemeral: &v1.EphemeralVolumeSource{PersistentVolumeClaim: &v1.EphemeralClaim{ClaimName: "/a"}}}, 1},
		{v1.Volume{Ephemeral: &v1.EphemeralVolumeSource{}}, 1},
	} {
		if errs := validateSource(tt.volume, field.NewPath("v")); len(errs) != tt.errs {
			t.Errorf("%+v: %v", tt.volume, errs)
		}
	}
}

func TestValidateHostDisk(t *testing.T) {
	gib := ptr.To(resource.MustParse("1Gi"))
	for _, tt := range []struct {
		disk v1.HostDisk
		want string // the field that is wrong, or ""
	}{
		{v1.HostDisk{Path: "/vms/a.img", Type: v1.HostDiskExists}, ""},
		{v1.HostDisk{Path: "/vms/a.img", Type: v1.HostDiskExistsOrCreate, Capacity: gib, Shared: ptr.To(true)}, ""},
		{v1.HostDisk{Path: "/vms/a.img"}, "type"},
		{v1.HostDisk{Path: "/vms/a.img", Type: "Folder"}, "type"},
		{v1.HostDisk{Path: "/vms/a.img", Type: v1.HostDiskExists, Capacity: gib}, "capacity"},
		{v1.HostDisk{Path: "/vms/a.img", Type: v1.HostDiskExistsOrCreate}, "capacity"},
		{v1.HostDisk{Path: "/vms/a.img", Type: v1.HostDiskExistsOrCreate, Capacity: ptr.To(resource.MustParse("0"))},
			"capacity"},
		{v1.HostDisk{Path: "a.img", Type: v1.HostDiskExists}, "path"},
		{v1.HostDisk{Path: "/", Type: v1.HostDiskExists}, "path"},
		{v1.HostDisk{Path: "", Type: v1.HostDiskExists}, "path"},
		{v1.HostDisk{Path: "/vms/../etc/shadow", Type: v1.HostDiskExists}, "path"},
		{v1.HostDisk{Path: "/vms//a.img", Type: v1.HostDiskExists}, "path"},
		{v1.HostDisk{Path: "/vms/a.img/", Type: v1.HostDiskExists}, "path"},
		{v1.HostDisk{Path: "/vms/a:b", Type: v1.HostDiskExists}, "path"},
		{v1.HostDisk{Path: "/vms/a\x00b", Type: v1.HostDiskExists}, "path"},
	} {
		errs := validateSource(v1.Volume{HostDisk: &tt.disk}, field.NewPath("v"))
		if tt.want == "" && len(errs) > 0 || tt.want != "" && (len(errs) != 1 || errs[0].Field != "v.hostDisk."+tt.want) {
			t.Errorf("%+v: %v, want an error of %q", tt.disk, errs, tt.want)
		}
	}
}

func TestHostDiskFolder(t *testing.T) {
	config := func(folders ...string) *v1.KubeVirtConfiguration {
		return &v1.KubeVirtConfiguration{HostDisk: &v1.HostDiskConfiguration{Folders: folders}}
	}
	for _, tt := range []struct {
		config *v1.KubeVirtConfiguration
		path   string
		want   string // folder and what is below, or "" where it is refused
	}{
		{&v1.KubeVirtConfiguration{}, "/vms/a.img", ""},
		{config(), "/vms/a.img", ""},
		{config("/vms"), "/vms/a.img", "/vms a.img"},
		{config("/vms"), "/vms/team/a.img", "/vms team/a.img"},
		{config("/vms", "/vms/team"), "/vms/team/a.img", "/vms/team a.img"},
		{config("/vms"), "/vms", ""},
		{config("/vms"), "/vms2/a.img", ""},
		{config("/vms"), "/vms/../etc/shadow", ""},
		{config("/vms"), "/etc/shadow", ""},
		{config("/"), "/etc/shadow", ""},
		{config("/vms/../etc"), "/etc/shadow", ""},
		{config("vms"), "vms/a.img", ""},
		{config(""), "/a.img", ""},
	} {
		disk := &v1.HostDisk{Path: tt.path, Type: v1.HostDiskExists}
		folder, below, permitted := tt.config.HostDiskFolder(disk)
		if got := strings.TrimSpace(folder + " " + below); got != tt.want || permitted != (tt.want != "") {
			t.Errorf("%s with %+v: %q, %v, want %q", tt.path, tt.config.HostDisk, got, permitted, tt.want)
		}
		vmi := &v1.VirtualMachineInstance{}
		vmi.Spec.Volumes = []v1.Volume{{Name: "root", HostDisk: disk}}
		if errs := ValidateForCluster(vmi, tt.config); (len(errs) == 0) != permitted {
			t.Errorf("%s with %+v: %v", tt.path, tt.config.HostDisk, errs)
		}
	}
}
