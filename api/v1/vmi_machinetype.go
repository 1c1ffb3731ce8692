package v1

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// machineReleases are the releases of QEMU whose machine types q35 and virt are known, the
// oldest that the launcher's QEMU still has first.
var machineReleases = []string{
	"5.2", "6.0", "6.1", "6.2", "7.0", "7.1", "7.2", "8.0", "8.1", "8.2", "9.0", "9.1", "9.2", "10.0", "10.1", "10.2",
	"11.0", "11.1",
}

// goneReleases are those whose machine types q35 and virt newer QEMUs do not have any more.
var goneReleases = []string{
	"2.4", "2.5", "2.6", "2.7", "2.8", "2.9", "2.10", "2.11", "2.12", "3.0", "3.1", "4.0", "4.1", "4.2", "5.0", "5.1",
}

// rhelReleases are the releases of QEMU that RHEL's machine types pc-q35-rhelX.Y.Z were made from: those of the
// qemu-kvm in that release of RHEL.
var rhelReleases = map[string]string{
	"7.3.0": "2.6", "7.4.0": "2.9", "7.5.0": "2.10", "7.6.0": "2.12", "8.0.0": "3.1", "8.1.0": "4.1", "8.2.0": "4.2",
	"8.3.0": "5.1", "8.4.0": "5.2", "8.5.0": "6.0", "8.6.0": "6.2", "9.0.0": "6.2", "9.2.0": "7.2", "9.4.0": "8.2",
	"9.6.0": "9.1", "9.8.0": "10.1", "10.0.0": "9.1", "10.2.0": "10.1",
}

const (
	q35Prefix  = "pc-q35-"
	virtPrefix = "virt-"
	// RHELPrefix begins the names of RHEL's machine types. Its release follows.
	RHELPrefix = q35Prefix + "rhel"
)

// KnownMachineType reports whether a name is that of a versioned machine type that exists for an architecture; empty is
// amd64. A node reports the machine type of each guest. virt-controller copies that type into the VirtualMachine only
// if this function knows it: a type that does not exist would keep the VirtualMachine from ever starting again.
func KnownMachineType(name, architecture string) bool {
	release, versioned := strings.CutPrefix(name, machinePrefix(architecture))
	return versioned && slices.Contains(machineReleases, release)
}

func machinePrefix(architecture string) string {
	if architecture == ARM64 {
		return virtPrefix
	}
	return q35Prefix
}

// UpstreamMachineType returns the machine type of QEMU's own that stands for a machine type: for one of RHEL's, that
// from which RHEL made it, and for a release of QEMU whose machine types are gone, that of the oldest release that has
// them still. Another name is returned as it is.
func UpstreamMachineType(name string) string {
	if release, is := strings.CutPrefix(name, RHELPrefix); is && rhelReleases[release] != "" {
		name = q35Prefix + rhelReleases[release]
	}
	for _, prefix := range []string{q35Prefix, virtPrefix} {
		if release, is := strings.CutPrefix(name, prefix); is && slices.Contains(goneReleases, release) {
			return prefix + machineReleases[0]
		}
	}
	return name
}

// RHELReleases returns the releases of RHEL whose machine types are known, the oldest first.
func RHELReleases() []string {
	return slices.SortedFunc(maps.Keys(rhelReleases), func(a, b string) int {
		if olderRelease(strings.TrimSuffix(a, ".0"), strings.TrimSuffix(b, ".0")) {
			return -1
		}
		return 1
	})
}

// olderRelease reports whether a text is a release X.Y of QEMU before another.
func olderRelease(release, than string) bool {
	parse := func(text string) (major, minor int, ok bool) {
		first, second, _ := strings.Cut(text, ".")
		major, err := strconv.Atoi(first)
		minor, err2 := strconv.Atoi(second)
		return major, minor, err == nil && err2 == nil
	}
	major, minor, ok := parse(release)
	otherMajor, otherMinor, _ := parse(than)
	return ok && (major < otherMajor || major == otherMajor && minor < otherMinor)
}
