package control

import "encoding/json"

const (
	// MaxHostBytes bounds the Host of a StartRequest. That of a guest with 200 disks has 40 KiB.
	MaxHostBytes = 96 << 10
	// MaxArgumentsBytes bounds the answer to CommandArguments. That of a guest with 200 disks has 190 KiB.
	MaxArgumentsBytes = MaxLineBytes - 16<<10
)

// Arguments is the answer to CommandArguments. Its JSON is that of the subresource qemuargs.
type Arguments struct {
	// Program and Arguments are those of QEMU's process.
	Program   string   `json:"program"`
	Arguments []string `json:"arguments"`
	// ClockStart is the moment of which the clock in the arguments tells, in seconds since 1970. It is 0 for a clock
	// without an offset.
	ClockStart int64 `json:"clockStart,omitempty"`
	// Host is that of the StartRequest.
	Host json.RawMessage `json:"host,omitempty"`
}
