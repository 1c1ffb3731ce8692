package v1

import (
	"crypto/sha1"
	"encoding/hex"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// LabelOfName is a VMI's name. A name too long for a label is shortened by KubeVirt's rule,
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

const observedLabel = "virt-controller writes this label of VirtualMachineInstances, by what it sees of the guest: leave it out"

// validateSelected refuses a ReplicaSet's selector by labels that virt-controller writes. A VMI that got such a label, or
// lost it, would not be the ReplicaSet's any more, and the ReplicaSet would make another one, without end.
func validateSelected(selector *metav1.LabelSelector, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for key := range selector.MatchLabels {
		if ObservedLabel(key) {
			errs = append(errs, field.Forbidden(path.Child("matchLabels").Key(key), observedLabel))
		}
	}
	for i, e := range selector.MatchExpressions {
		if ObservedLabel(e.Key) {
			errs = append(errs, field.Forbidden(path.Child("matchExpressions").Index(i).Child("key"), observedLabel))
		}
	}
	return errs
}

// PodLabels returns the labels of a VMI that its pods get: all but those that are reserved, and those by which a launcher pod is known as
// the VMI's.
func (vmi *VirtualMachineInstance) PodLabels() map[string]string {
	labels := map[string]string{}
	maps.Copy(labels, WithoutReservedLabels(vmi.Labels))
	for _, key := range []string{VirtualMachineInstanceIDLabel, VirtualMachineNameLabel} {
		delete(labels, key)
	}
	return labels
}
