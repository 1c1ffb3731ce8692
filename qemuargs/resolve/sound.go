package resolve

import (
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// sound adds the sound card.
func sound(b *build) {
	s := b.devices().Sound
	if s == nil {
		return
	}
	b.m.Sound = &qemuargs.Sound{Model: qemuargs.ICH9, PCI: integrated(soundSlot)}
	if s.Model == v1.SoundAC97 {
		b.m.Sound.Model = qemuargs.AC97
	}
}
