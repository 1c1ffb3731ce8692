package v1

import (
	corev1 "k8s.io/api/core/v1"
)

// RolloutStrategy says what a change of a VirtualMachine's template does while the guest runs.
type RolloutStrategy string

// The values of RolloutStrategy; KubeVirt's vmRolloutStrategy.
const (
	// RolloutStage: the change holds from the next start on.
	RolloutStage RolloutStrategy = "Stage"
	// RolloutLiveUpdate: the running guest follows what it can follow.
	RolloutLiveUpdate RolloutStrategy = "LiveUpdate"
)

// Rollout returns the cluster's roll-out strategy. Default: LiveUpdate, as in KubeVirt.
func (c *KubeVirtConfiguration) Rollout() RolloutStrategy {
	if c == nil || c.VMRolloutStrategy == nil {
		return RolloutLiveUpdate
	}
	return *c.VMRolloutStrategy
}

// Placement is what a spec says of the nodes for its guest, and what a running guest follows: its
// next migration heeds it.
//
// +kubebuilder:object:generate=false
type Placement struct {
	NodeSelector map[string]string   `json:"nodeSelector,omitempty"`
	Affinity     *corev1.Affinity    `json:"affinity,omitempty"`
	Tolerations  []corev1.Toleration `json:"tolerations,omitempty"`
}

// Placement returns the spec's. It shares the spec's memory.
func (s *VirtualMachineInstanceSpec) Placement() Placement {
	return Placement{s.NodeSelector, s.Affinity, s.Tolerations}
}

// Place gives a spec another placement.
func (s *VirtualMachineInstanceSpec) Place(p Placement) {
	s.NodeSelector, s.Affinity, s.Tolerations = p.NodeSelector, p.Affinity, p.Tolerations
}

// PlacementHash returns a hash of the template's placement as the user wrote it.
func (vm *VirtualMachine) PlacementHash() string {
	return hashOf(vm.Spec.Template.Spec.Placement())
}

// IsOfTemplate reports whether a VirtualMachineInstance was made from what the VM's template says now, but for the
// placement, the names of claims and the states of links. A VirtualMachineInstance without the annotation passes.
func (vm *VirtualMachine) IsOfTemplate(vmi *VirtualMachineInstance) bool {
	made := vmi.Annotations[TemplateHashAnnotation]
	return made == "" || made == vm.TemplateHash()
}

// IsPlaced reports whether a VirtualMachineInstance has the placement that the VM's template says now. A
// VirtualMachineInstance without the annotation passes: it never follows the template.
func (vm *VirtualMachine) IsPlaced(vmi *VirtualMachineInstance) bool {
	placed := vmi.Annotations[PlacementHashAnnotation]
	return placed == "" || placed == vm.PlacementHash()
}
