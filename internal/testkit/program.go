package testkit

import (
	"os"
	"syscall"
	"testing"
)

// Program writes a program that the test starts later. Linux starts no program that a process has open for writing
// (execve(2), ETXTBSY), and a child that another test forks meanwhile has this test's open files until its own exec. So
// no child is forked while Program writes.
func Program(t testing.TB, path string, text []byte) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, text, 0o755); err != nil {
		t.Fatal(err)
	}
}
