package layout

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxLabel is the longest name of a volume or a container of a pod, and hashLength the length of the hash in a name
// that is not written out.
const (
	maxLabel   = 63
	hashLength = 10
)

// PodName returns the name of a volume or a container of the pod that belongs to a thing of the VMI's, by the thing's
// kind and name. Places in lists would not do: they change when things come and go while the guest runs. A name that is
// too long, or no DNS label, is cut and has a hash. A kind has no hyphen, so that things of two kinds have two names.
func PodName(kind, name string) string {
	whole := kind + "-" + name
	if len(whole) <= maxLabel && isLabel(whole) {
		return whole
	}
	sum := sha256.Sum256([]byte(name))
	suffix := "-" + hex.EncodeToString(sum[:])[:hashLength]
	spelled := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9':
			return r
		case 'A' <= r && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, whole)
	return strings.TrimRight(spelled[:min(len(spelled), maxLabel-len(suffix))], "-") + suffix
}

// isLabel reports whether a name is a DNS label (RFC 1123), but for its length. A regular expression would cost each
// virt-launcher half a MiB.
func isLabel(name string) bool {
	inside := func(r rune) bool { return 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || r == '-' }
	return name != "" && name[0] != '-' && name[len(name)-1] != '-' &&
		!strings.ContainsFunc(name, func(r rune) bool { return !inside(r) })
}

// PasstContainerPrefix begins the names of the containers with passt.
const PasstContainerPrefix = passt + "-"

const passt = "passt"

// PasstContainer returns the name of the container with the passt of an interface.
func PasstContainer(nic string) string { return PodName(passt, nic) }
