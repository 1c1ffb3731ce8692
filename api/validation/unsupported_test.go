package validation

import (
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestUnsupportedFieldsAreReportedByPath sets every refused field, one at a time, wherever it is in
// the spec: each must be reported by its own path.
func TestUnsupportedFieldsAreReportedByPath(t *testing.T) {
	tried := sets.New[string]()
	var walk func(value reflect.Value, path string, check func(path string))
	walk = func(value reflect.Value, path string, check func(path string)) {
		set := func(to reflect.Value) {
			before := reflect.New(value.Type()).Elem()
			before.Set(value)
			value.Set(to)
			check(path)
			value.Set(before)
		}
		switch value.Interface().(type) {
		case *v1.Unsupported:
			set(reflect.ValueOf(&v1.Unsupported{}))
			return
		case *v1.Never:
			set(reflect.ValueOf(&v1.Never{}))
			return
		case v1.UnsupportedList:
			set(reflect.ValueOf(v1.UnsupportedList{{}}))
			return
		case v1.UnsupportedString:
			set(reflect.ValueOf(v1.UnsupportedString("x")))
			return
		case v1.UnsupportedBool:
			set(reflect.ValueOf(v1.UnsupportedBool(true)))
			return
		case v1.NeverBool:
			set(reflect.ValueOf(v1.NeverBool(true)))
			return
		}
		if !strings.HasPrefix(value.Type().String(), "v1.") && value.Kind() == reflect.Struct ||
			value.Type().PkgPath() != "" && value.Type().PkgPath() != reflect.TypeFor[v1.Disk]().PkgPath() {
			return
		}
		switch value.Kind() {
		case reflect.Pointer:
			if value.Type().Elem().PkgPath() != reflect.TypeFor[v1.Disk]().PkgPath() {
				return
			}
			wasNil := value.IsNil()
			if wasNil {
				value.Set(reflect.New(value.Type().Elem()))
			}
			walk(value.Elem(), path, check)
			if wasNil {
				value.SetZero()
			}
		case reflect.Slice:
			if value.Len() > 0 {
				walk(value.Index(0), path+"[0]", check)
			}
		case reflect.Struct:
			for i := range value.NumField() {
				name, _, _ := strings.Cut(value.Type().Field(i).Tag.Get("json"), ",")
				walk(value.Field(i), path+"."+name, check)
			}
		}
	}
	object := parse(t, valid)
	v1.Default(object)
	walk(reflect.ValueOf(&object.Spec).Elem(), "spec", func(path string) {
		tried.Insert(path)
		count := 0
		whole := object.DeepCopy()
		v1.Default(whole)
		errs := ValidateVirtualMachineInstance(whole)
		for _, e := range errs {
			if e.Field == path && (strings.HasPrefix(e.Detail, notSupported) ||
				strings.HasPrefix(e.Detail, "never supported: ")) {
				count++
			}
		}
		if count != 1 {
			t.Errorf("%s: reported %d times, want once: %v", path, count, errs)
		}
	})
	for _, path := range []string{"spec.domain.devices.downwardMetrics", "spec.domain.devices.disks[0].lun.reservation",
		"spec.domain.launchSecurity", "spec.domain.devices.disks[0].changedBlockTracking", "spec.utilityVolumes",
		"spec.volumes[0].dataVolume.hotpluggable", "spec.networks[0].resourceClaim"} {
		if !tried.Has(path) {
			t.Errorf("%s was not tried", path)
		}
	}
	t.Logf("%d fields of KubeVirt are refused by name", tried.Len())
}
