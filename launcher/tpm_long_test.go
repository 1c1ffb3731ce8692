//go:build long

package launcher

import (
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// TestTPMHangs: QEMU waits for a TPM's emulator that does not answer, and the launcher waits for QEMU as long as it
// does for any QEMU.
func TestTPMHangs(t *testing.T) {
	t.Parallel()
	v := launchBrokenTPM(t, "exec sleep 1000")
	v.must(v.call(control.CommandStart, v.request, nil))
	v.expectEnd(control.ReasonStartFailed, "the emulator of the TPM did not end with QEMU, and was killed")
}
