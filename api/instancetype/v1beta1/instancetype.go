package v1beta1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// VirtualMachineInstancetype is a size of virtual machines: their CPUs and memory. It is
// applied when a VirtualMachine that names it is started, as it was when the VirtualMachine named it: a
// ControllerRevision keeps that.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=virtualmachineinstancetypes,shortName=vminstancetype;vminstancetypes;vmf;vmfs,categories=all
// +kubebuilder:metadata:labels="kubevirt.io="
type VirtualMachineInstancetype struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VirtualMachineInstancetypeSpec `json:"spec"`
}

// VirtualMachineInstancetypeList is a list of VirtualMachineInstancetypes.
//
// +kubebuilder:object:root=true
type VirtualMachineInstancetypeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachineInstancetype `json:"items"`
}

// VirtualMachineClusterInstancetype is a VirtualMachineInstancetype for all
// namespaces.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=virtualmachineclusterinstancetypes,scope=Cluster,shortName=vmclusterinstancetype;vmclusterinstancetypes;vmcf;vmcfs
// +kubebuilder:metadata:labels="kubevirt.io="
type VirtualMachineClusterInstancetype struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VirtualMachineInstancetypeSpec `json:"spec"`
}

// VirtualMachineClusterInstancetypeList is a list of VirtualMachineClusterInstancetypes.
//
// +kubebuilder:object:root=true
type VirtualMachineClusterInstancetypeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachineClusterInstancetype `json:"items"`
}

// VirtualMachineInstancetypeSpec is a size. The template of a VirtualMachine that names it must
// not set the same fields.
// +kubebuilder:validation:XValidation:rule="!has(self.cpu.dedicatedCPUPlacement) || !self.cpu.dedicatedCPUPlacement || !has(self.memory.overcommitPercent) || self.memory.overcommitPercent == 0",message="a guest with cpu.dedicatedCPUPlacement has all of its memory: memory.overcommitPercent must not be set",fieldPath=".memory.overcommitPercent"
type VirtualMachineInstancetypeSpec struct {
	// CPU is the number and model of the guest's CPUs.
	CPU CPUInstancetype `json:"cpu"`
	// Memory of the guest.
	Memory MemoryInstancetype `json:"memory"`
	// NodeSelector holds labels that the node must have.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// SchedulerName is the scheduler that chooses the node.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	SchedulerName string `json:"schedulerName,omitempty"`
	// Annotations of the VirtualMachineInstance.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Annotations map[string]string `json:"annotations,omitempty"`
	// IOThreadsPolicy is domain.ioThreadsPolicy.
	// +optional
	// +kubebuilder:validation:Enum="";shared;auto;supplementalPool
	IOThreadsPolicy *v1.IOThreadsPolicy `json:"ioThreadsPolicy,omitempty"`
	// IOThreads is domain.ioThreads.
	// +optional
	IOThreads *v1.DiskIOThreads `json:"ioThreads,omitempty"`

	// GPUs are refused: not supported yet.
	// +optional
	GPUs v1.UnsupportedList `json:"gpus,omitempty"`
	// HostDevices are refused: not supported yet.
	// +optional
	HostDevices v1.UnsupportedList `json:"hostDevices,omitempty"`
	// LaunchSecurity is refused: not supported yet.
	// +optional
	LaunchSecurity *v1.Unsupported `json:"launchSecurity,omitempty"`
}

// CPUInstancetype is the number and model of the guest's CPUs.
type CPUInstancetype struct {
	// Guest is the number of the guest's CPUs: sockets of one core, unless a preference wants
	// others. 0 counts as 1.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=255
	Guest uint32 `json:"guest"`
	// Model is a QEMU CPU model, host-passthrough or host-model. Default: as
	// for a VirtualMachineInstance.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._-]*$`
	Model string `json:"model,omitempty"`

	// DedicatedCPUPlacement gives each of the guest's CPUs a CPU of the node to itself. Default: false.
	// +optional
	DedicatedCPUPlacement *bool `json:"dedicatedCPUPlacement,omitempty"`
	// IsolateEmulatorThread gives QEMU's other threads one more CPU of the node. Default: false.
	// +optional
	IsolateEmulatorThread *bool `json:"isolateEmulatorThread,omitempty"`
	// NUMA topology of the guest.
	// +optional
	NUMA *v1.NUMA `json:"numa,omitempty"`
	// Realtime scheduling of the guest's CPUs.
	// +optional
	Realtime *v1.Realtime `json:"realtime,omitempty"`
	// MaxSockets is how many sockets the guest can have.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=512
	MaxSockets uint32 `json:"maxSockets,omitempty"`
}

// MemoryInstancetype is the guest's memory.
// +kubebuilder:validation:XValidation:rule="!has(self.hugepages) || !has(self.overcommitPercent) || self.overcommitPercent == 0",message="hugepages and overcommitPercent should not be requested together",fieldPath=".overcommitPercent"
type MemoryInstancetype struct {
	// Guest is the guest's RAM, 1M to 4Ei. Exponents are refused.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^[0-9.]{1,20}([KMGTPE]i?|[numk])?$`
	Guest resource.Quantity `json:"guest"`
	// OvercommitPercent is how much less than the guest's memory the pod
	// requests, in percent. Default: 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	OvercommitPercent int32 `json:"overcommitPercent,omitempty"`

	// Hugepages of the node are the guest's memory.
	// +optional
	Hugepages *v1.Hugepages `json:"hugepages,omitempty"`
	// MaxGuest is how much memory the guest can have, Guest included. Exponents are refused.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^[0-9.]{1,20}([KMGTPE]i?|[numk])?$`
	MaxGuest *resource.Quantity `json:"maxGuest,omitempty"`
}
