//go:build long

package resolve

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// arm64Root is the root of the image of the launcher that emulates guests of arm64.
const arm64Root = "../../_output/cache/launcher-arm64-emulator-root"

// TestARM64Starts starts every golden of arm64 in the QEMU of the image, and in the host's.
func TestARM64Starts(t *testing.T) {
	host, err := exec.LookPath("qemu-system-aarch64")
	if err != nil {
		t.Fatalf("%v: install Debian's qemu-system-arm (make test-arm64)", err)
	}
	root, err := filepath.Abs(arm64Root)
	if err != nil {
		t.Fatal(err)
	}
	started := 0
	for _, q := range []program{{path: host}, {path: root + "/usr/bin/qemu-system-aarch64", root: root}} {
		q.ask(t)
		for _, dir := range cases(t, machineCases) {
			vmi, host := load(t, dir, hosts[0])
			host.Accelerator, host.QEMUVersion = qemuargs.TCG, q.version
			machine, errs := Machine(vmi, host)
			if len(errs) > 0 || !isForeign(machine) {
				continue
			}
			started++
			t.Run(filepath.Base(dir)+"/"+q.version, func(t *testing.T) {
				if said := startStopped(t, q, machine); strings.Contains(said, "deprecated") {
					t.Errorf("QEMU %s warns:\n%s", q.version, said)
				}
			})
		}
	}
	if started < 60 {
		t.Errorf("only %d machines", started)
	}
}
