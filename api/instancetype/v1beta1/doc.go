// Package v1beta1 holds the supported part of KubeVirt's API group
// instancetype.kubevirt.io/v1beta1: sizes and preferences that VirtualMachines
// refer to by name.
//
// As in package api/v1, a field stands here only if it has an effect, or to be
// refused by its path ("not supported yet").
//
// +kubebuilder:object:generate=true
// +groupName=instancetype.kubevirt.io
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of all kinds in this package.
var GroupVersion = schema.GroupVersion{Group: "instancetype.kubevirt.io", Version: "v1beta1"}

// AddToScheme registers the kinds of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&VirtualMachineInstancetype{}, &VirtualMachineInstancetypeList{},
		&VirtualMachineClusterInstancetype{}, &VirtualMachineClusterInstancetypeList{},
		&VirtualMachinePreference{}, &VirtualMachinePreferenceList{},
		&VirtualMachineClusterPreference{}, &VirtualMachineClusterPreferenceList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
