package v1

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

func TestValidateHostDisk(t *testing.T) {
	gib := ptr.To(resource.MustParse("1Gi"))
	for _, tt := range []struct {
		disk HostDisk
		want string // the field that is wrong, or ""
	}{
		{HostDisk{Path: "/vms/a.img", Type: HostDiskExists}, ""},
		{HostDisk{Path: "/vms/a.img", Type: HostDiskExistsOrCreate, Capacity: gib, Shared: ptr.To(true)}, ""},
		{HostDisk{Path: "/vms/a.img"}, "type"},
		{HostDisk{Path: "/vms/a.img", Type: "Folder"}, "type"},
		{HostDisk{Path: "/vms/a.img", Type: HostDiskExists, Capacity: gib}, "capacity"},
		{HostDisk{Path: "/vms/a.img", Type: HostDiskExistsOrCreate}, "capacity"},
		{HostDisk{Path: "/vms/a.img", Type: HostDiskExistsOrCreate, Capacity: ptr.To(resource.MustParse("0"))}, "capacity"},
		{HostDisk{Path: "a.img", Type: HostDiskExists}, "path"},
		{HostDisk{Path: "/", Type: HostDiskExists}, "path"},
		{HostDisk{Path: "", Type: HostDiskExists}, "path"},
		{HostDisk{Path: "/vms/../etc/shadow", Type: HostDiskExists}, "path"},
		{HostDisk{Path: "/vms//a.img", Type: HostDiskExists}, "path"},
		{HostDisk{Path: "/vms/a.img/", Type: HostDiskExists}, "path"},
		{HostDisk{Path: "/vms/a:b", Type: HostDiskExists}, "path"},
		{HostDisk{Path: "/vms/a\x00b", Type: HostDiskExists}, "path"},
	} {
		errs := validateSource(Volume{HostDisk: &tt.disk}, field.NewPath("v"))
		if tt.want == "" && len(errs) > 0 || tt.want != "" && (len(errs) != 1 || errs[0].Field != "v.hostDisk."+tt.want) {
			t.Errorf("%+v: %v, want an error of %q", tt.disk, errs, tt.want)
		}
	}
}

func TestHostDiskFolder(t *testing.T) {
	config := func(folders ...string) *KubeVirtConfiguration {
		return &KubeVirtConfiguration{HostDisk: &HostDiskConfiguration{Folders: folders}}
	}
	for _, tt := range []struct {
		config *KubeVirtConfiguration
		path   string
		want   string // folder and what is below, or "" where it is refused
	}{
		{&KubeVirtConfiguration{}, "/vms/a.img", ""},
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
		disk := &HostDisk{Path: tt.path, Type: HostDiskExists}
		folder, below, permitted := tt.config.HostDiskFolder(disk)
		if got := strings.TrimSpace(folder + " " + below); got != tt.want || permitted != (tt.want != "") {
			t.Errorf("%s with %+v: %q, %v, want %q", tt.path, tt.config.HostDisk, got, permitted, tt.want)
		}
		vmi := &VirtualMachineInstance{}
		vmi.Spec.Volumes = []Volume{{Name: "root", HostDisk: disk}}
		if errs := ValidateForCluster(vmi, tt.config); (len(errs) == 0) != permitted {
			t.Errorf("%s with %+v: %v", tt.path, tt.config.HostDisk, errs)
		}
	}
}
