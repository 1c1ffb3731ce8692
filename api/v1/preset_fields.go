package v1

// PresetFields returns the fields of a domain that a preset sets, in this order: each as a whole, and each quantity of
// resources by itself. The documentation of the preset's Domain names them, and tools/crd reads them there.
func PresetFields() []string {
	return []string{"resources.requests", "resources.limits", "cpu", "memory", "machine", "firmware", "features",
		"ioThreadsPolicy", "devices.watchdog", "clock.utc", "clock.timezone", "clock.timer"}
}

// Sets returns a copy of what the preset sets.
func (p *VirtualMachineInstancePreset) Sets() *DomainSpec {
	set := &DomainSpec{}
	if p.Spec.Domain == nil {
		return set
	}
	said := *p.Spec.Domain // fieldAt makes objects that are not there
	for _, path := range PresetFields() {
		fieldAt(set, path).Set(fieldAt(&said, path))
	}
	return set.DeepCopy()
}
