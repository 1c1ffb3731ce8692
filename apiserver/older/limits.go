package older

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// memoryGoal is when the child's garbage collector becomes busy (GOMEMLIMIT). With the schemas
	// of all kinds, the child has 60 MiB.
	memoryGoal = "80MiB"
	// memoryLimit, in bytes, ends the child. The kernel counts 60 MiB that Go never touches. So
	// with virt-api's own goal, 96 MiB, the pod stays below its limit, 256 MiB, at which the
	// kernel would end virt-api too.
	memoryLimit = 192 << 20
)

// Limit limits the process that calls it, as the child does first.
func Limit() error {
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: memoryLimit, Max: memoryLimit}); err != nil {
		return fmt.Errorf("limit memory: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("limit core dumps: %w", err)
	}
	// If the node has no memory left, the child goes first.
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0); err != nil {
		return fmt.Errorf("be first when memory runs out: %w", err)
	}
	return nil
}
