package launchertest

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Banner is what the guest says when it has booted.
const Banner = "KUBEQEMU GUEST UP"

var (
	//go:embed guest.lst
	listing string
	//go:embed machine.json
	machine []byte
)

// Guest returns a machine whose disk, at a path, is the boot sector of guest.lst and a MiB of
// nothing.
func Guest(t testing.TB, path string) qemuargs.Machine {
	t.Helper()
	disk := make([]byte, 1<<20)
	n := 0
	for line := range strings.Lines(listing) {
		code, _, _ := strings.Cut(line, ";")
		for _, b := range strings.Fields(code) {
			if _, err := fmt.Sscanf(b, "%02x", &disk[n]); err != nil {
				t.Fatalf("guest.lst: %q: %v", line, err)
			}
			n++
		}
	}
	if n > 510 {
		t.Fatalf("guest.lst holds %d bytes, a boot sector 510", n)
	}
	disk[510], disk[511] = 0x55, 0xaa
	var m qemuargs.Machine
	if err := errors.Join(json.Unmarshal(machine, &m), os.WriteFile(path, disk, 0o644)); err != nil {
		t.Fatal(err)
	}
	m.Disks[0].Image.Path = path
	return m
}

// Program returns the path of one of QEMU's programs.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%v: install Debian's qemu-system-x86 and qemu-utils (make packages)", err)
	}
	return path
}
