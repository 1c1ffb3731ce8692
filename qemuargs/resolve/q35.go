package resolve

import (
	"fmt"
	"strconv"
	"strings"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// This file decides what only machines of amd64 have: the versions of q35.

// version is a release of QEMU, or that of a machine type.
type version struct{ major, minor int }

func (v version) before(other version) bool {
	return v.major < other.major || v.major == other.major && v.minor < other.minor
}

// The first machine types with offloads that depend on the host's kernel.
var (
	version82  = version{8, 2}  // USO
	version102 = version{10, 2} // UDP tunnels
)

const typePrefix = "pc-q35-"

// machineType turns q35 or virt into the versioned type of QEMU's own release. It refuses a type that
// this QEMU does not have yet, and a type that later QEMUs no longer have.
func machineType(wanted string, names boardName, qemuVersion string) (string, version, error) {
	qemu, err := release(qemuVersion)
	if err != nil {
		return "", version{}, err
	}
	if wanted == names.alias {
		return fmt.Sprintf("%s%d.%d", names.prefix, qemu.major, qemu.minor), qemu, nil
	}
	wanted = v1.UpstreamMachineType(wanted) // QEMU's own, that stands for one of RHEL's, or for one that is gone
	board, err := release(strings.TrimPrefix(wanted, names.prefix))
	switch {
	case err != nil:
		return "", version{}, err
	case qemu.before(board):
		return "", version{}, fmt.Errorf("is newer than this node's QEMU %s", qemuVersion)
	case !v1.KnownMachineType(wanted, names.architecture):
		return "", version{}, fmt.Errorf("is not a machine type of QEMU, or was removed from it")
	}
	return wanted, board, nil
}

// monitorObject reports whether the monitor is an object: since 11.1 QEMU warns of -mon.
func monitorObject(qemuVersion string) bool {
	qemu, err := release(qemuVersion)
	return err == nil && !qemu.before(version{11, 1})
}

func release(text string) (v version, err error) {
	parts := strings.SplitN(text, ".", 3)
	if len(parts) < 2 {
		return v, fmt.Errorf("no QEMU release: %q", text)
	}
	if v.major, err = strconv.Atoi(parts[0]); err == nil {
		v.minor, err = strconv.Atoi(parts[1])
	}
	if err != nil {
		return v, fmt.Errorf("no QEMU release: %q", text)
	}
	return v, nil
}
