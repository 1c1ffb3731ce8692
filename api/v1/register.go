package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of all kinds in this package.
var GroupVersion = schema.GroupVersion{Group: "kubevirt.io", Version: "v1"}

// OlderVersion is KubeVirt's older name of the same API. virt-api and qemuargs read it.
const OlderVersion = "v1alpha3"

// The kinds that own objects, under KubeVirt's names.
var (
	VirtualMachineGroupVersionKind                   = GroupVersion.WithKind("VirtualMachine")
	VirtualMachineInstanceGroupVersionKind           = GroupVersion.WithKind("VirtualMachineInstance")
	VirtualMachineInstanceReplicaSetGroupVersionKind = GroupVersion.WithKind("VirtualMachineInstanceReplicaSet")
	VirtualMachineInstanceMigrationGroupVersionKind  = GroupVersion.WithKind("VirtualMachineInstanceMigration")
)

// AddToScheme registers the kinds of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &VirtualMachineInstance{}, &VirtualMachineInstanceList{}, &KubeVirt{}, &KubeVirtList{})
	s.AddKnownTypes(GroupVersion, &VirtualMachine{}, &VirtualMachineList{})
	s.AddKnownTypes(GroupVersion, &VirtualMachineInstanceReplicaSet{}, &VirtualMachineInstanceReplicaSetList{})
	s.AddKnownTypes(GroupVersion, &VirtualMachineInstancePreset{}, &VirtualMachineInstancePresetList{})
	s.AddKnownTypes(GroupVersion, &VirtualMachineInstanceMigration{}, &VirtualMachineInstanceMigrationList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
