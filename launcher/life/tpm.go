package life

import (
	"fmt"
	"time"
)

// TPM is what became of the emulator of the machine's TPM. It is empty while the emulator lives, and for a machine
// without a TPM.
type TPM struct {
	// Ending says how the emulator has ended, while QEMU may be about to end too: the emulator ends with QEMU.
	Ending string
	// Lost says how the emulator has ended without QEMU.
	Lost string
	// Early: the emulator ended before the guest ran here.
	Early bool
}

// TPMTime is how long QEMU may outlive the emulator of its TPM before the TPM counts as lost. The emulator ends when
// QEMU's process does, and the kernel takes longer to free QEMU's memory.
const TPMTime = 5 * time.Second

// TPMEnded: the emulator of the machine's TPM has ended, after it Said its last line.
type TPMEnded struct {
	Exit Exit
	Said string
}

// String returns how the emulator has ended, and its last line if it wrote one.
func (e TPMEnded) String() string {
	how := fmt.Sprintf("the emulator of the TPM %s", e.Exit)
	if e.Said != "" {
		how += ": " + e.Said
	}
	return how
}

// hear leaves a guest running whose TPM has failed, as it would run on a board whose TPM has failed: its disks are
// whole, and every command to the TPM fails from now on. Nobody can start the emulator anew, because the guest's
// measurements are lost.
func (e TPMEnded) hear(s *step) {
	if !s.driven() || s.TPM != (TPM{}) {
		return
	}
	s.TPM.Ending = e.String()
	s.TPM.Early = s.in(Starting, Receiving, Received) && !s.mayHaveRun()
	s.timer(TPMTimer, TPMTime)
}

// MayMissTPM reports whether the end of the TPM's emulator may be why a guest did not come, and the cause does not
// say so.
func (s State) MayMissTPM() bool { return s.Order.Incoming && !s.Came && s.Cause.Kind != NoTPM }

// tpmLost ends a guest that was to begin without its TPM. A guest that comes from another QEMU does not end here: it
// may have left its source. virt-handler hears that it cannot run here when it asks (RunAsked), and its source, whose
// TPM is whole, takes it back.
func (s *step) tpmLost() {
	s.TPM.Ending, s.TPM.Lost = "", s.TPM.Ending
	if s.TPM.Early && !s.Order.Incoming && !s.in(ShuttingDown) {
		s.kill(Cause{NoTPM, s.TPM.Lost}, "the TPM failed before the guest ran")
	}
}
