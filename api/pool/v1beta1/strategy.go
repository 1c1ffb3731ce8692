package v1beta1

import "k8s.io/apimachinery/pkg/util/intstr"

// WantedReplicas is the wanted number of VirtualMachines.
func (p *VirtualMachinePool) WantedReplicas() int {
	if p.Spec.Replicas == nil {
		return 1
	}
	return int(*p.Spec.Replicas)
}

// MayBeUnavailable is how many VirtualMachines may be without a running guest
// while guests are restarted.
func (p *VirtualMachinePool) MayBeUnavailable() int {
	wanted := p.WantedReplicas()
	if p.Spec.MaxUnavailable == nil {
		return max(wanted, 1)
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(p.Spec.MaxUnavailable, wanted, false)
	if err != nil {
		return 1 // the validation says what is wrong
	}
	return max(n, 1)
}

// DeletesSurplus says whether the pool deletes VirtualMachines that are too
// many, and which first.
func (s *VirtualMachinePoolSpec) DeletesSurplus() (bool, VirtualMachinePoolSortPolicy) {
	switch in := s.ScaleInStrategy; {
	case in == nil:
		return true, SortRandom
	case in.Unmanaged != nil, in.Opportunistic != nil:
		return false, SortRandom
	case in.Proactive != nil:
		return true, in.Proactive.SelectionPolicy.order()
	}
	return true, SortRandom
}

// Updates says whether VirtualMachines get a new template's spec.
func (s *VirtualMachinePoolSpec) Updates() bool {
	return s.UpdateStrategy == nil || s.UpdateStrategy.Unmanaged == nil
}

// Restarts says whether guests are restarted for a new template's spec, and which first.
func (s *VirtualMachinePoolSpec) Restarts() (bool, VirtualMachinePoolSortPolicy) {
	switch u := s.UpdateStrategy; {
	case u == nil:
		return true, SortRandom
	case u.Unmanaged != nil, u.Opportunistic != nil:
		return false, SortRandom
	case u.Proactive != nil:
		return true, u.Proactive.SelectionPolicy.order()
	}
	return true, SortRandom
}

func (p *VirtualMachinePoolSelectionPolicy) order() VirtualMachinePoolSortPolicy {
	if p == nil || p.SortPolicy == nil {
		return SortRandom
	}
	return *p.SortPolicy
}
