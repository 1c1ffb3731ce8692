package manifest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	"github.com/kubeqemu/kubeqemu/api/instancetype/wellknown"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/api/validation"
)

// size returns the instancetype that a VM of a namespace names, and its document, if the VM names
// one.
func (s Set) size(namespace string, matcher *v1.InstancetypeMatcher) (*v1beta1.VirtualMachineInstancetypeSpec, Document, error) {
	if matcher == nil {
		return nil, Document{}, nil
	}
	found := &v1beta1.VirtualMachineInstancetype{}
	d, err := s.find(namespace, matcher.Name, matcher.Kind, []string{"VirtualMachineClusterInstancetype", "VirtualMachineInstancetype"}, found)
	if err == nil {
		err = d.invalid(validation.RefusedFields(&found.Spec, field.NewPath("spec")))
	}
	return &found.Spec, d, err
}

// preference returns the preference that a VM of a namespace names, and its document, if the VM
// names one.
func (s Set) preference(namespace string, matcher *v1.PreferenceMatcher) (*v1beta1.VirtualMachinePreferenceSpec, Document, error) {
	if matcher == nil {
		return nil, Document{}, nil
	}
	found := &v1beta1.VirtualMachinePreference{}
	d, err := s.find(namespace, matcher.Name, matcher.Kind, []string{"VirtualMachineClusterPreference", "VirtualMachinePreference"}, found)
	if err == nil {
		err = d.invalid(validation.RefusedFields(&found.Spec, field.NewPath("spec")))
	}
	return &found.Spec, d, err
}

// find decodes and returns the document with a name and one of two kinds: the cluster's kind, which is the
// default and has no namespace, and the kind of a namespace. Both have the same fields.
func (s Set) find(namespace, name, kind string, kinds []string, into any) (Document, error) {
	if name == "" {
		return Document{}, errors.New("inferFromVolume needs a cluster: name it instead")
	}
	if kind == "" {
		kind = kinds[0]
	}
	for _, d := range s {
		same := strings.EqualFold(d.Kind, kind) || strings.EqualFold(d.Kind+"s", kind)
		here := d.Kind == kinds[0] || d.namespace() == namespace
		if same && here && slices.Contains(kinds, d.Kind) && d.Name == name && d.APIVersion == v1beta1.GroupVersion.String() {
			return d, d.decode(into)
		}
	}
	if strings.EqualFold(kind, kinds[0]) || strings.EqualFold(kind, kinds[0]+"s") {
		return Document{}, fmt.Errorf("%s %q is not among the manifests: name its file too, with -f %s", kind, name, wellKnownFile(kinds[0], name))
	}
	return Document{}, fmt.Errorf("%s %q of namespace %q is not among the manifests: name its file too, with -f FILE", kind, name, namespace)
}

// wellKnownFile returns the file of Kubeqemu's that has an instancetype or a preference of the cluster, or FILE.
func wellKnownFile(kind, name string) string {
	objects, err := wellknown.Objects()
	there := func(o wellknown.Object) bool { return o.Kind == kind && o.Name == name && len(o.WaitsFor) == 0 }
	if err != nil || !slices.ContainsFunc(objects, there) {
		return "FILE"
	}
	return "config/instancetypes/objects.yaml"
}
