package importer

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// PodPrefix begins the name of each importer pod. The policy kubevirt-controller-forwarding lets
// virt-controller and virt-api connect to no other pod.
const PodPrefix = "importer-"

// PodName is the name of a DataVolume's importer pod.
func PodName(volume string) string {
	// The kubelet keeps the pod's logs in a folder NAMESPACE_NAME_UID, whose name has at most 255 bytes.
	const limit = 255 - 63 - 36 - len("__")
	name := PodPrefix + volume
	if len(name) <= limit {
		return name
	}
	sum := sha256.Sum256([]byte(volume))
	suffix := "-" + hex.EncodeToString(sum[:5])
	return strings.TrimRight(name[:limit-len(suffix)], "-.") + suffix
}
