package admission

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestPoliciesExceptNothingMore: the policies hold every field of a spec or a status but these.
func TestPoliciesExceptNothingMore(t *testing.T) {
	exception := regexp.MustCompile(`\bk (?:in \[[^\]]*\]|[=!]= '[^']*')`)
	for file, want := range map[string][]string{
		// Of the CPU by virt-controller. By virt-api, of a new volume, the spec, the domain and the devices.
		"../../config/api/vmi-update.yaml": {"k != 'sockets'", "k in ['name', 'persistentVolumeClaim', 'dataVolume']",
			"k == 'domain'", "k == 'volumes'", "k == 'devices'", "k == 'disks'"},
		// Of the spec of a VM, and the status of a VMI.
		"../../config/api/rbac.yaml": {"k in ['running', 'runStrategy']", "k == 'evacuationNodeName'"},
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got := exception.FindAllString(string(text), -1); !slices.Equal(got, want) {
			t.Errorf("%s excepts %q, want %q", file, got, want)
		}
	}
}

// TestIdentityNamesEveryField: each field of a VMI's spec belongs to the identity of the guest or does not, and a new
// field belongs to neither until somebody has thought about it. TestAdmission/identity holds the policy to the two
// lists, and this test where the schema lets no such field in.
func TestIdentityNamesEveryField(t *testing.T) {
	policy, err := os.ReadFile("../../config/api/vmi-update.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, fields := range []map[string]string{identity, free} {
		for path, value := range fields {
			holds := strings.Contains(string(policy), "'"+path[strings.LastIndex(path, ".")+1:]+"'")
			if value == impossible && path != "volumes[].name" && holds != has(identity, path) {
				t.Errorf("config/api/vmi-update.yaml holds %s: %t", path, holds)
			}
		}
	}
	for prefix, of := range map[string]reflect.Type{
		"":                reflect.TypeFor[v1.VirtualMachineInstanceSpec](),
		"domain.":         reflect.TypeFor[v1.DomainSpec](),
		"domain.cpu.":     reflect.TypeFor[v1.CPU](),
		"domain.devices.": reflect.TypeFor[v1.Devices](),
		"volumes[].":      reflect.TypeFor[v1.Volume](),
	} {
		var got []string
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			if path := prefix + name; !slices.Contains(looked, path) {
				got = append(got, path)
			}
		}
		for _, path := range got {
			if _, held := identity[path]; held == has(free, path) {
				t.Errorf("%s: either config/api/vmi-update.yaml holds it and it is in the map identity, or it is in the map "+
					"free: may virt-controller change it while the guest runs, without making another guest of it?", path)
			}
		}
		for _, fields := range []map[string]string{identity, free} {
			for path := range fields {
				rest, below := strings.CutPrefix(path, prefix)
				if below && !strings.Contains(rest, ".") && !slices.Contains(got, path) {
					t.Errorf("there is no field %s", path)
				}
			}
		}
	}
}

func has(fields map[string]string, path string) bool {
	_, found := fields[path]
	return found
}
