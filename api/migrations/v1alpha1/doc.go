// Package v1alpha1 holds the supported part of KubeVirt's API group
// migrations.kubevirt.io/v1alpha1: policies for live migrations.
//
// +kubebuilder:object:generate=true
// +groupName=migrations.kubevirt.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of all kinds in this package.
var GroupVersion = schema.GroupVersion{Group: "migrations.kubevirt.io", Version: "v1alpha1"}

// AddToScheme registers the kinds of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &MigrationPolicy{}, &MigrationPolicyList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
