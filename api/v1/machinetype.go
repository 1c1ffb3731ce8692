package v1

import (
	"slices"
	"strings"
)

// machineReleases are the releases of QEMU whose machine types q35 and virt are known, the
// oldest that the launcher's QEMU still has first.
var machineReleases = []string{"5.2", "6.0", "6.1", "6.2", "7.0", "7.1", "7.2", "8.0", "8.1", "8.2", "9.0", "9.1", "9.2", "10.0", "10.1", "10.2", "11.0", "11.1"}

// KnownMachineType says whether a name is that of a versioned machine type that
// exists for an architecture; empty is amd64. A node reports the machine type of each guest. virt-controller copies that
// type into the VirtualMachine only if this function knows it: a type that does not
// exist would keep the VirtualMachine from ever starting again.
func KnownMachineType(name, architecture string) bool {
	prefix := "pc-q35-"
	if architecture == ARM64 {
		prefix = "virt-"
	}
	release, versioned := strings.CutPrefix(name, prefix)
	return versioned && slices.Contains(machineReleases, release)
}
