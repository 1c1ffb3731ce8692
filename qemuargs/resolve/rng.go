package resolve

import "github.com/kubeqemu/kubeqemu/qemuargs"

// rng adds the random number generator.
func rng(b *build) {
	if devices := b.devices(); devices.Rng != nil {
		b.m.RNG = &qemuargs.RNG{PCI: integrated(rngSlot), Transitional: devices.Transitional()}
	}
}
