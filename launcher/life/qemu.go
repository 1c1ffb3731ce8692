package life

import (
	"fmt"
	"syscall"
)

// QEMU's end, which may come in any state.
type (
	// MonitorLost: QEMU's monitor has ended. QEMU closes its monitor when it exits; a QEMU
	// that lives on without a monitor cannot be driven, nor asked to stop.
	MonitorLost struct{ Err error }
	// QEMUExited: QEMU's process has ended, and its events were heard before.
	QEMUExited struct{ Exit Exit }
)

// Whether QEMU answers.
type (
	// Probed: virt-handler wants to know whether QEMU answers.
	Probed struct{}
	// ProbeAnswered answers Probe.
	ProbeAnswered struct{}
)

// Exit is how QEMU's process ended.
type Exit struct {
	Code   int
	Signal syscall.Signal
}

func (e Exit) String() string {
	if e.Signal != 0 {
		return fmt.Sprintf("was killed by signal %d (%s)", int(e.Signal), e.Signal)
	}
	return fmt.Sprintf("exited with code %d", e.Code)
}

// hasQEMU reports whether QEMU was started and has not ended.
func (s *step) hasQEMU() bool { return s.driven() || s.in(Quitting, Killing) }

// listens reports whether QEMU can tell anything.
func (s *step) listens() bool { return s.hasQEMU() && s.Lost == "" }

func (e MonitorLost) hear(s *step) {
	if !s.hasQEMU() || s.Lost != "" {
		return
	}
	s.Lost = e.Err.Error()
	s.Storage.Trial = NoTrial
	s.dropHold()
	if s.Silence == Asked {
		s.Silence = Unasked
	}
	if !s.in(Killing) {
		s.timer(KillTimer, QuitTime)
	}
}

func (e QEMUExited) hear(s *step) {
	if s.hasQEMU() {
		s.Exit = e.Exit
		s.finish(s.Cause)
	}
}

func (Probed) hear(s *step) {
	if s.Serves() && s.Lost == "" && s.Silence == Unasked {
		s.Silence = Asked
		s.act(Probe)
		s.timer(PatienceTimer, PatienceTime)
	}
}

func (ProbeAnswered) hear(s *step) {
	if !s.HasEnded() {
		s.Silence = Unasked
	}
}
