package v1

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Placement is what a spec says of the nodes for its guest.
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

// placementFollower has a running guest follow what its template says of nodes. Nothing moves the guest because of it:
// the next migration heeds it, as in KubeVirt.
type placementFollower struct{}

func (placementFollower) owns(path string) bool {
	return slices.Contains([]string{"nodeSelector", "affinity", "tolerations"}, path)
}

func (placementFollower) stays(vm *VirtualMachine, vmi *VirtualMachineInstance, _ string) string {
	if made, _ := vmi.madeFrom(); slices.Contains(vm.Parts().since(made), partInstancetype) {
		return "the instancetype was changed, too, and may bring another nodeSelector"
	}
	return vmi.StaysPut()
}

// take gives the spec the whole placement: that of an instancetype is one with the template's.
func (placementFollower) take(spec, template *VirtualMachineInstanceSpec, _ string) {
	spec.Place(template.Placement())
}

func (placementFollower) told(*VirtualMachineInstance, []string) string {
	return "The next migration of the guest heeds the template's nodeSelector, affinity and tolerations"
}

func (placementFollower) how() string { return "at the next migration, if the guest can migrate" }

// StaysPut returns why a guest cannot migrate now, or "" if it can.
func (vmi *VirtualMachineInstance) StaysPut() string {
	c := vmi.Status.Condition(ConditionLiveMigratable)
	switch {
	case vmi.Status.Phase != Running:
		return "the guest does not run yet"
	case c == nil:
		return "it is not known yet whether the guest can migrate"
	case c.Status != metav1.ConditionTrue:
		return "the guest cannot migrate: " + c.Message
	}
	return ""
}
