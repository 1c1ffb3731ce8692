package v1

// The guest's state is what the machine itself keeps for a guest, besides the disks: UEFI variables, for
// example. State that outlives the VirtualMachineInstance is on a claim that virt-controller makes, one for
// each VirtualMachine, or for each VirtualMachineInstance without one.

// StateClaim says whether the guest's state is on a claim.
func (s *VirtualMachineInstanceSpec) StateClaim() bool {
	return s.Domain.PersistentVariables()
}

// PersistentVariables says whether the UEFI variables outlive the VirtualMachineInstance.
func (d *DomainSpec) PersistentVariables() bool {
	efi := d.UEFI()
	return efi != nil && bool(efi.Persistent)
}
