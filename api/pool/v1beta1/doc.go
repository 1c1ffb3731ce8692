// Package v1beta1 holds the supported part of KubeVirt's API group
// pool.kubevirt.io/v1beta1: pools of VirtualMachines.
//
// As in package api/v1, a field stands here only if it has an effect, or to be
// refused by its path ("not supported yet").
//
// +kubebuilder:object:generate=true
// +groupName=pool.kubevirt.io
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of all kinds in this package.
var GroupVersion = schema.GroupVersion{Group: "pool.kubevirt.io", Version: "v1beta1"}

// OlderVersion is KubeVirt's older name of the same API. qemuargs reads it; no cluster serves it yet.
const OlderVersion = "v1alpha1"

// VirtualMachinePoolGroupVersionKind is the kind that owns a pool's VirtualMachines.
var VirtualMachinePoolGroupVersionKind = GroupVersion.WithKind("VirtualMachinePool")

// AddToScheme registers the kinds of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &VirtualMachinePool{}, &VirtualMachinePoolList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
