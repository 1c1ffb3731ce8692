// Package processtest has the test's own binary play programs that do what real programs
// cannot be made to do.
package processtest

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// Fakes are programs, by name. The test's binary plays a program when it is called by the
// program's name.
type Fakes map[string]func()

// Path returns the path of one of the programs.
func (f Fakes) Path(t *testing.T, name string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil || f[name] == nil {
		t.Fatalf("fake %s: %v", name, err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// Run plays the program that the test's binary was called as, or else runs the tests,
// parallel of them at a time (go test -parallel) unless that is 0. Run returns the exit
// code. The tests fail where they leave a process behind.
func (f Fakes) Run(m *testing.M, parallel int) int {
	if play := f[filepath.Base(os.Args[0])]; play != nil {
		play()
		return 0
	}
	flag.Parse()
	if parallel > 0 {
		flag.Set("test.parallel", strconv.Itoa(parallel))
	}
	code := m.Run()
	if left := Children(); len(left) > 0 {
		fmt.Fprintf(os.Stderr, "processes left behind: %q\n", left)
		return 1
	}
	return code
}

// Hang waits until it is killed. SIGTERM, which QEMU obeys, does not end it.
func Hang() {
	signal.Ignore(syscall.SIGTERM)
	<-time.After(5 * time.Minute) // should all else fail
}

// Children returns the processes that this process has started and not waited for.
func Children() []string {
	var found []string
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		// The name, in parentheses, may hold anything. State and parent follow the name.
		i := bytes.LastIndexByte(data, ')')
		var state string
		var parent int
		if _, err := fmt.Sscan(string(data[i+1:]), &state, &parent); err == nil && parent == os.Getpid() {
			found = append(found, string(data[:i+3]))
		}
	}
	return found
}
