package older

import (
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	// memoryGoal is when the child's garbage collector becomes busy (GOMEMLIMIT). With the schemas
	// of all kinds, the child has 60 MiB.
	memoryGoal = "80MiB"
	// memoryLimit, in bytes, ends the child. With virt-api's own goal, 96 MiB, and the bodies that
	// virt-api holds at once, 42 MiB, the container stays below its limit, 384 MiB
	// (config/api/deployment.yaml), at which the kernel would end virt-api too.
	memoryLimit = 192 << 20
)

// Limit limits the process that calls it, as the child does first.
//
// It leaves oom_score_adj alone. The kubelet sets memory.oom.group: if the node's memory runs out, and
// the kernel chooses the child, then the kernel ends all of the container. So a child that is the
// first choice would make virt-api the first choice.
func Limit() error {
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: memoryLimit, Max: memoryLimit}); err != nil {
		return fmt.Errorf("limit memory: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("limit core dumps: %w", err)
	}
	return nil
}
