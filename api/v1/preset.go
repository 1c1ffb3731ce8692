package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VirtualMachineInstancePreset sets what new VirtualMachineInstances of its namespace leave out.
// KubeVirt has deprecated presets: use instancetypes and preferences.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=virtualmachineinstancepresets,shortName=vmipreset;vmipresets
// +kubebuilder:deprecatedversion:warning="VirtualMachineInstancePreset is deprecated; use VirtualMachineInstancetype and VirtualMachinePreference"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="metadata.name must have at most 63 characters: an annotation of each VirtualMachineInstance that the preset applies to has the name in its key"
type VirtualMachineInstancePreset struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VirtualMachineInstancePresetSpec `json:"spec"`
}

// VirtualMachineInstancePresetList is a list of VirtualMachineInstancePresets.
//
// +kubebuilder:object:root=true
type VirtualMachineInstancePresetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VirtualMachineInstancePreset `json:"items"`
}

// VirtualMachineInstancePresetSpec says what is set, and in which VirtualMachineInstances.
type VirtualMachineInstancePresetSpec struct {
	// Selector of the labels of VirtualMachineInstances. An empty selector selects all of the
	// namespace. A VirtualMachineInstance that exists is never changed.
	// +kubebuilder:validation:XValidation:rule="!has(self.matchLabels) || self.matchLabels.size() <= 64",message="matchLabels must have at most 64 labels"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.size() <= 16",message="matchExpressions must have at most 16 items"
	Selector metav1.LabelSelector `json:"selector"`
	// Domain sets resources.requests, resources.limits, cpu, memory, machine, firmware, features, ioThreadsPolicy,
	// devices.watchdog, clock.utc, clock.timezone and clock.timer. Each is set as a whole, and each quantity of
	// resources by itself. A value of the VirtualMachineInstance's own wins: if it says anything of its cpu, its own
	// cpu holds. If it requests or limits memory, its own memory holds. Two presets that select the same
	// VirtualMachineInstance must not set different values.
	// +optional
	Domain *DomainSpec `json:"domain,omitempty"`
}

const (
	// MaxPresets is how many presets a namespace may have, and MaxPresetBytes how large they may
	// be together. All of them are read for each new VMI of the namespace.
	MaxPresets     = 64
	MaxPresetBytes = 512 << 10
)

// VirtualMachineInstancePresetResource names presets in the API.
var VirtualMachineInstancePresetResource = GroupVersion.WithResource("virtualmachineinstancepresets")

// MaxPresetName is the longest name in the key of an annotation.
const MaxPresetName = 63
