package qemuargs

// Environment returns the environment that QEMU is started with: name=value.
//
// MALLOC_ARENA_MAX is glibc's (mallopt(3)). By default each thread of QEMU's gets an
// arena of its own, of which it writes to a few pages only. QEMU's threads seldom
// allocate at the same time; with one arena for all of them a VM takes 0.15 MB less.
func Environment() []string {
	return []string{"LC_ALL=C", "PATH=/usr/bin:/bin", "HOME=/", "MALLOC_ARENA_MAX=1"}
}
