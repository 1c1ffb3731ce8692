package compare

import (
	"fmt"
	"slices"
)

// hostFlags are of the host alone: the guest cannot tell them from others.
var hostFlags = []string{"-name", "-S", "-no-user-config", "-nodefaults", "-overcommit", "-chardev", "-mon", "-add-fd", "-netdev", "-blockdev", "-object",
	"-display", "-vnc", "-sandbox", "-msg"}

// hostProperties are the properties of -device that name a backend or say what QEMU does with it.
var hostProperties = []string{"drive", "netdev", "chardev", "rng", "werror", "rerror", "id", "romfile", "iothread", "iothread-vq-mapping", "share-rw"}

// guestSees reports whether the guest can tell the machine with one argument from the machine with
// the other. An argument that is not there is "".
func guestSees(before, after Argument) bool {
	a := after
	if a == "" {
		a = before
	}
	if slices.Contains(hostFlags, a.flag()) {
		return false
	}
	old, oldOK := before.properties()
	now, nowOK := after.properties()
	if a.flag() != "-device" || !oldOK || !nowOK {
		return true
	}
	for _, key := range hostProperties {
		delete(old, key)
		delete(now, key)
	}
	return fmt.Sprint(old) != fmt.Sprint(now)
}
