package manifest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// size returns the instancetype that a VM names, if it names one.
func (s Set) size(matcher *v1.InstancetypeMatcher) (*v1beta1.VirtualMachineInstancetypeSpec, error) {
	if matcher == nil {
		return nil, nil
	}
	found := &v1beta1.VirtualMachineInstancetype{}
	err := s.find(matcher.Name, matcher.Kind, []string{"VirtualMachineClusterInstancetype", "VirtualMachineInstancetype"}, found)
	return &found.Spec, err
}

// preference returns the preference that a VM names, if it names one.
func (s Set) preference(matcher *v1.PreferenceMatcher) (*v1beta1.VirtualMachinePreferenceSpec, error) {
	if matcher == nil {
		return nil, nil
	}
	found := &v1beta1.VirtualMachinePreference{}
	err := s.find(matcher.Name, matcher.Kind, []string{"VirtualMachineClusterPreference", "VirtualMachinePreference"}, found)
	return &found.Spec, err
}

// find decodes the document with a name and one of the kinds. The first kind is the default.
// A kind of the cluster has the same fields as the kind of a namespace.
func (s Set) find(name, kind string, kinds []string, into any) error {
	if name == "" {
		return errors.New("inferFromVolume needs a cluster: name it instead")
	}
	if kind == "" {
		kind = kinds[0]
	}
	for _, d := range s {
		same := strings.EqualFold(d.Kind, kind) || strings.EqualFold(d.Kind+"s", kind)
		if same && slices.Contains(kinds, d.Kind) && d.Name == name && d.APIVersion == v1beta1.GroupVersion.String() {
			return d.decode(into)
		}
	}
	return fmt.Errorf("%s %q is not among the manifests", kind, name)
}
