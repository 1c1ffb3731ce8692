package resolve

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestKVMFlagsAreKnown starts the goldens with KVM in the image's QEMU with all flags of -cpu, but emulated: that QEMU
// ignores flags that only KVM has, and refuses those that it does not know.
func TestKVMFlagsAreKnown(t *testing.T) {
	all := qemus(t)
	q, flags := all[len(all)-1], 0
	for _, dir := range cases(t, machineCases) {
		vmi, host := load(t, dir, hosts[1])
		host.Accelerator, host.QEMUVersion = qemuargs.KVM, q.version
		machine, errs := Machine(vmi, host)
		if len(errs) > 0 || len(machine.CPU.Flags) == 0 || isForeign(machine) {
			continue
		}
		flags += len(machine.CPU.Flags)
		machine.Accelerator, machine.CPU.Model, machine.Clock.PITPolicy = qemuargs.TCG, "max", ""
		t.Run(filepath.Base(dir), func(t *testing.T) {
			// vmx, which evmcs requires, is none that TCG has.
			said := strings.ReplaceAll(startStopped(t, q, machine), "warning: TCG doesn't support requested feature", "")
			if strings.Contains(said, "warning") {
				t.Errorf("QEMU %s warns:\n%s", q.version, said)
			}
		})
	}
	if flags < 20 {
		t.Errorf("only %d flags were tried", flags)
	}
}
