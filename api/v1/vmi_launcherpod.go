package v1

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// FirstPod is the role of a VMI's first launcher pod. The target pod of a migration has the
// migration's UID for its role.
const FirstPod types.UID = ""

const (
	launcherPrefix = "virt-launcher-"
	consumerPrefix = "virt-consumer-"
	// maxFileName bounds the name of a file, in bytes (Linux, NAME_MAX).
	maxFileName = 255
	// maxPodName bounds a pod's name, in characters: the kubelet keeps the pod's logs in a folder NAMESPACE_NAME_UID.
	maxPodName = maxFileName - maxNamespace - uidLength - len("__")
	// maxClaimName bounds the name of a claim that is derived from another name, in characters: local-path-provisioner keeps the claim's files in a
	// folder pvc-UID_NAMESPACE_NAME.
	maxClaimName = maxFileName - len("pvc-") - uidLength - maxNamespace - len("__")
	maxNamespace = 63
	uidLength    = 36
	// podHash is how many bytes of the hash of a VMI's UID its pods' names have. A name that is cut has
	// more of them, by which it is known.
	podHash    = 5
	cutPodHash = 8
	// MaxWholeName is the longest name of a VMI, in characters, that is whole in the name of its launcher pod.
	MaxWholeName = maxPodName - len(launcherPrefix) - len("-") - 2*podHash
)

// LauncherPodName returns the name of a VMI's launcher pod in a role. The name depends on nothing else. So
// two reconciles that create the same pod at once create one pod, and a VMI has a second pod
// only in a migration.
//
// The name contains a hash of the VMI's UID. virt-handler learns only the pod's name from the
// kubelet, and by the hash tells the pod from one of an earlier VMI of the same name. The name
// proves nothing beyond that; see LauncherPodNames.
func LauncherPodName(name string, uid, role types.UID) string {
	return derivedName(launcherPrefix, name, uid, role, maxPodName)
}

// ConsumerPodName returns the name of the pod that has a VMI's claims bound, before its launcher pod.
func ConsumerPodName(name string, uid types.UID) string {
	return derivedName(consumerPrefix, name, uid, FirstPod, maxPodName)
}

// derivedName returns a name of at most so many characters, for what an owner has in a role.
func derivedName(prefix, name string, uid, role types.UID, most int) string {
	of := string(uid)
	if role != FirstPod {
		of += "/" + string(role) // no UID has a slash
	}
	sum := sha256.Sum256([]byte(of))
	suffix := "-" + hex.EncodeToString(sum[:podHash])
	prefix += name
	if len(prefix)+len(suffix) > most {
		suffix = "-" + hex.EncodeToString(sum[:cutPodHash])
		prefix = strings.TrimRight(prefix[:most-len(suffix)], "-.")
	}
	return prefix + suffix
}

// launcherPodName matches the names of launcher pods that have the VMI's name in whole.
var launcherPodName = regexp.MustCompile(`^` + launcherPrefix + `(.+)-[0-9a-f]{10}$`)

// VMIOfLauncherPod returns the name of the VMI that a launcher pod of this name can belong to. It is empty
// if the name is no launcher pod's, and if the VMI's name was cut: it has more than 129 characters.
func VMIOfLauncherPod(pod string) string {
	if parts := launcherPodName.FindStringSubmatch(pod); parts != nil {
		return parts[1]
	}
	return ""
}

// LauncherPod returns the name of the launcher pod that has the guest, or is to have it: the first pod, until the
// guest has moved.
func (vmi *VirtualMachineInstance) LauncherPod() string {
	if vmi.Status.LauncherPod != "" {
		return vmi.Status.LauncherPod
	}
	return LauncherPodName(vmi.Name, vmi.UID, FirstPod)
}

// LauncherPodNames returns the names of a VMI's launcher pods: the name of the pod that has the guest, and the
// names in the status, which only virt-controller may write. A pod of another name is not the VMI's,
// whatever its labels say.
func (vmi *VirtualMachineInstance) LauncherPodNames() []string {
	names := []string{vmi.LauncherPod()}
	for _, pod := range vmi.Status.LauncherPods {
		if !slices.Contains(names, pod.Name) {
			names = append(names, pod.Name)
		}
	}
	return names
}
