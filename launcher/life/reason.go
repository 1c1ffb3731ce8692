package life

import (
	"fmt"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

var abortedEarly = Cause{NotStarted, "asked to end before QEMU was started"}

const panicked = "the guest's kernel panicked"

// Termination returns how a VM ended, from QEMU's events and its exit. The loop adds QEMU's last words.
func (s State) Termination() control.Termination {
	t := control.Termination{ExitCode: s.Exit.Code}
	if s.Exit.Signal != 0 {
		t.Signal = s.Exit.Signal.String()
	}
	if s.Cause.Kind == NotStartable || s.Cause.Kind == NoTPM {
		t = control.Termination{} // QEMU was killed for that, and its exit says nothing
	}
	t.Reason, t.Message = s.reason()
	return t
}

func (s State) reason() (control.Reason, string) {
	ran, killedLost := s.mayHaveRun(), s.Cause.Kind == Undrivable
	switch s.Cause.Kind {
	case NotStarted:
		return control.ReasonNeverStarted, s.Cause.Text
	case NotStartable, NoTPM:
		return control.ReasonStartFailed, s.Cause.Text
	case NotAgain:
		return control.ReasonQMPLost,
			"the guest powered off in order to start anew, and QEMU could not be made to: " + s.Cause.Text
	case Quit:
		return s.quitReason()
	case Crashed:
		return control.ReasonGuestPanic, panicked
	case Moved:
		return control.ReasonMigrated, "the guest went on in another pod"
	case Scattered:
		return control.ReasonPostCopyFailed, s.Cause.Text
	}
	switch {
	case !killedLost && (s.Follows() || s.Leaving == Torn || s.Memory == Coming && s.Exit != Exit{}):
		return control.ReasonPostCopyFailed,
			fmt.Sprintf("QEMU %s while the guest's memory followed the guest to another node", s.Exit)
	case !ran && killedLost:
		return control.ReasonStartFailed, "QEMU could not be driven, and was killed before the guest ran: " + s.Cause.Text
	case !ran:
		return control.ReasonStartFailed, fmt.Sprintf("QEMU %s before the guest ran", s.Exit)
	case killedLost && !s.Power.off(): // else QEMU was only slow to free its memory
		return control.ReasonQMPLost, "QEMU could not be driven any more, and was killed: " + s.Cause.Text
	case !killedLost && s.Exit != Exit{}:
		return control.ReasonQEMUExited, fmt.Sprintf("QEMU %s", s.Exit)
	case s.Panicked || s.LastShutdown == "guest-panic":
		return control.ReasonGuestPanic, panicked
	case s.Power.off(), s.endedByReset():
		return s.poweredOff()
	}
	return control.ReasonQEMUExited, fmt.Sprintf("QEMU %s (shutdown reason %q)", s.Exit, s.LastShutdown)
}

// quitReason returns the reason of an end after QEMU was told to quit. A guest that had powered off before, while
// QEMU was still ending, did so by itself.
func (s State) quitReason() (control.Reason, string) {
	switch {
	case s.Power.off() && s.Panicked:
		return control.ReasonGuestPanic, panicked
	case s.Power.off():
		return s.poweredOff()
	case s.Order.NoACPI:
		return control.ReasonShutdown, "the guest has no ACPI and so no power button; QEMU was ended"
	}
	return control.ReasonGracePeriodOver,
		fmt.Sprintf("the guest did not power off within %d seconds; QEMU was ended", s.Order.Grace)
}

// endedByReset reports whether QEMU ended in place of a reset, by the guest or by a user (ShutdownCause in
// qapi/run-state.json).
func (s State) endedByReset() bool {
	return s.Order.EndsOnReboot && (s.LastShutdown == "guest-reset" || s.LastShutdown == "host-qmp-system-reset")
}

func (s State) poweredOff() (control.Reason, string) {
	if s.Wish == Shutdown {
		return control.ReasonShutdown, "the guest powered off after the ACPI power button"
	}
	if s.endedByReset() {
		return control.ReasonGuestShutdown, "the guest rebooted, and its rebootPolicy is Terminate"
	}
	return control.ReasonGuestShutdown, "the guest powered off"
}
