package life

import (
	"slices"
	"testing"
)

// TestTPM: the end of a TPM's emulator is news only if QEMU goes on without it. The guest goes on too.
func TestTPM(t *testing.T) {
	running := []Event{start, Prepared{}, Handshaken{at(1)}}
	s, actions := Step(reach(running), tpmKilled)
	if !slices.Equal(actions, []Action{StartTimer{TPMTimer, TPMTime}}) || s.Report().TPMLost != "" {
		t.Errorf("ended: %v, %+v", actions, s.Report())
	}
	if _, actions := Step(s, QEMUExited{}); !slices.Equal(actions, []Action{StopTimer{TPMTimer}, Report{}, End{}}) {
		t.Errorf("QEMU ended too: %v", actions)
	}
	s, actions = Step(s, Expired{TPMTimer})
	if want := "the emulator of the TPM was killed by signal 9 (killed): oh"; !slices.Equal(actions, []Action{Report{}}) || s.Report().TPMLost != want || s.Phase != Running {
		t.Errorf("QEMU goes on: %v, %+v", actions, s.Report())
	}
}
