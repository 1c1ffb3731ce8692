package v1

import (
	"crypto/sha1"
	"encoding/hex"
	"maps"
)

// LabelOfName returns a VMI's name. A name too long for a label is shortened by KubeVirt's rule,
// because "virtctl expose" computes the same label.
func LabelOfName(name string) string {
	const limit = 63
	if len(name) <= limit {
		return name
	}
	sum := sha1.Sum([]byte(name))
	return name[:54] + "-" + hex.EncodeToString(sum[:])[:8]
}

// ObservedLabel reports whether virt-controller writes a label of VMIs, by what it sees of the guest.
func ObservedLabel(key string) bool { return key == NodeNameLabel || key == OutdatedLauncherLabel }

// PodLabels returns the labels of a VMI that its pods get: all but those that are reserved, and those by which a
// launcher pod is known as the VMI's.
func (vmi *VirtualMachineInstance) PodLabels() map[string]string {
	labels := map[string]string{}
	maps.Copy(labels, WithoutReservedLabels(vmi.Labels))
	for _, key := range []string{VirtualMachineInstanceIDLabel, VirtualMachineNameLabel} {
		delete(labels, key)
	}
	return labels
}
