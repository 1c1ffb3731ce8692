package v1

import "encoding/json"

// VirtualMachineInstanceQEMUArguments answers virtualmachineinstances/qemuargs, which KubeVirt does not have: what a
// running guest's QEMU was started with.
type VirtualMachineInstanceQEMUArguments struct {
	// Program is QEMU's path in the launcher's image.
	Program string `json:"program"`
	// Arguments are those of QEMU's process. The numbers in them are those of files that QEMU inherited.
	Arguments []string `json:"arguments"`
	// ClockStart is the moment of which the clock in the arguments tells, in seconds since 1970. It is 0 for a clock
	// without an offset.
	ClockStart int64 `json:"clockStart,omitempty"`
	// Host holds the facts of node and pod from which the arguments were made, as "qemuargs render --host" reads them.
	// It is unset for a guest that has come from a node with another QEMU.
	Host json.RawMessage `json:"host,omitempty"`
}
