package v1

import (
	"crypto/sha1"
	"encoding/hex"
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
