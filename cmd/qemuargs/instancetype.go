package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// size is the instancetype that a VM names, if any.
func (m manifest) size(matcher *v1.InstancetypeMatcher) (*v1beta1.VirtualMachineInstancetypeSpec, error) {
	if matcher == nil {
		return nil, nil
	}
	found := &v1beta1.VirtualMachineInstancetype{}
	err := m.find(matcher.Name, matcher.Kind, []string{"VirtualMachineClusterInstancetype", "VirtualMachineInstancetype"}, found)
	return &found.Spec, err
}

// preference is the preference that a VM names, if any.
func (m manifest) preference(matcher *v1.PreferenceMatcher) (*v1beta1.VirtualMachinePreferenceSpec, error) {
	if matcher == nil {
		return nil, nil
	}
	found := &v1beta1.VirtualMachinePreference{}
	err := m.find(matcher.Name, matcher.Kind, []string{"VirtualMachineClusterPreference", "VirtualMachinePreference"}, found)
	return &found.Spec, err
}

// find decodes the document with this name and one of the kinds. Without a kind, the first of
// kinds is meant. The namespaced kind and the cluster's kind have the same fields.
func (m manifest) find(name, kind string, kinds []string, into any) error {
	if name == "" {
		return errors.New("inferFromVolume needs a cluster: name it instead")
	}
	if kind == "" {
		kind = kinds[0]
	}
	for _, document := range m {
		var object metav1.PartialObjectMetadata
		if err := yaml.Unmarshal(document, &object); err != nil {
			return err
		}
		same := strings.EqualFold(object.Kind, kind) || strings.EqualFold(object.Kind+"s", kind)
		if same && slices.Contains(kinds, object.Kind) && object.Name == name && object.APIVersion == v1beta1.GroupVersion.String() {
			return decodeStrict(document, into)
		}
	}
	return fmt.Errorf("%s %q is not in the same file", kind, name)
}
