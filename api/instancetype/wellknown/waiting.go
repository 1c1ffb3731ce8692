package wellknown

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	kjson "sigs.k8s.io/json"

	"github.com/kubeqemu/kubeqemu/api/instancetype"
	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/api/validation"
)

// waitsFor returns the fields of an object that Kubeqemu refuses or does not know, by their paths
// below spec. Then come the fields of a VirtualMachineInstance that Kubeqemu refuses when the
// object has filled them.
func waitsFor(o Object) ([]string, error) {
	var size v1beta1.VirtualMachineClusterInstancetype
	var preference v1beta1.VirtualMachineClusterPreference
	var errs field.ErrorList
	var unknown []error
	var err error
	if o.Kind == Instancetype {
		unknown, err = kjson.UnmarshalStrict(o.Manifest, &size)
		errs = validation.RefusedFields(&size.Spec, nil)
	} else {
		unknown, err = kjson.UnmarshalStrict(o.Manifest, &preference)
		errs = validation.RefusedFields(&preference.Spec, nil)
		size.Spec = enoughFor(&preference.Spec)
	}
	if err != nil {
		return nil, fmt.Errorf("decode %s %q: %w", o.Kind, o.Name, err)
	}
	var paths []string
	for _, e := range errs {
		paths = append(paths, e.Field)
	}
	for _, e := range unknown {
		var at kjson.FieldError
		if !errors.As(e, &at) {
			return nil, fmt.Errorf("decode %s %q: %w", o.Kind, o.Name, e)
		}
		paths = append(paths, strings.TrimPrefix(at.FieldPath(), "spec."))
	}
	_, errs = instancetype.ExpandChecked(smallest(), &size.Spec, &preference.Spec)
	for _, e := range errs {
		path := strings.TrimPrefix(e.Field, "spec.template.")
		if value, ok := e.BadValue.(string); ok && value != "" {
			path += ": " + value
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// enoughFor is a size that meets a preference's requirements.
func enoughFor(preference *v1beta1.VirtualMachinePreferenceSpec) v1beta1.VirtualMachineInstancetypeSpec {
	size := v1beta1.VirtualMachineInstancetypeSpec{CPU: v1beta1.CPUInstancetype{Guest: 1}, Memory: v1beta1.MemoryInstancetype{Guest: resource.MustParse("1Gi")}}
	if r := preference.Requirements; r != nil && r.CPU != nil {
		size.CPU.Guest = cmp.Or(r.CPU.Guest, 1)
	}
	if r := preference.Requirements; r != nil && r.Memory != nil {
		size.Memory.Guest = r.Memory.Guest
	}
	return size
}

// smallest is a VirtualMachine that leaves everything to its instancetype and its preference.
func smallest() *v1.VirtualMachine {
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "smallest"}}
	vm.Spec.RunStrategy = ptr.To(v1.RunStrategyHalted)
	vm.Spec.Template.Spec.Volumes = []v1.Volume{{Name: "root", ContainerDisk: &v1.ContainerDiskSource{Image: "image:v1"}}}
	return vm
}
