package life

import "time"

// Timer is a timer of the loop.
type Timer int

// Timers.
const (
	ButtonTimer   Timer = iota // until the power button is pressed again
	GraceTimer                 // until the grace period is over, or a QEMU whose guest has powered off has had as long
	KillTimer                  // until an end that does not come by itself is forced
	RetryTimer                 // until a guest that an I/O error stopped may run again
	SettleTimer                // until that guest counts as running
	PatienceTimer              // until a QEMU that does not answer is called silent
	RebootTimer                // until a power-off is no reboot any more
	TPMTimer                   // until a QEMU that outlives its TPM has lost it
	HoldTimer                  // until a job has held the guest for as long as it may

	Timers // how many there are
)

// How long timers run.
const (
	// PressInterval: a guest whose ACPI driver is not up yet misses the power
	// button, so it is pressed again until the guest is down.
	PressInterval = 5 * time.Second
	// QuitTime is how long QEMU has to exit after "quit", or after the end of its monitor,
	// before it is killed. Preparation has as long to abort.
	QuitTime = 5 * time.Second
	// After an I/O error the guest may run again after FirstRetry, and then after twice as
	// long each time, up to LastRetry. An attempt has succeeded when the guest has run for
	// SettleTime: a guest whose storage still fails stops again at once, and would otherwise
	// seem to run now and then.
	FirstRetry = 5 * time.Second
	LastRetry  = time.Minute
	SettleTime = 3 * time.Second
	// PatienceTime is how long QEMU has to answer before it counts as silent. QEMU's main loop
	// may wait that long for storage under load.
	PatienceTime = 10 * time.Second
	// RebootTime is how long after the power button a power-off counts as the reboot that a
	// user asked for.
	RebootTime = 3 * time.Minute
)

// runs reports whether a timer may run in this state. Step stops the timers that may not run in the next state.
func (s State) runs(t Timer) bool {
	switch t {
	case ButtonTimer:
		return s.Phase == ShuttingDown
	case GraceTimer:
		return s.Phase == ShuttingDown || s.endsLater() || s.outlives()
	case KillTimer:
		return s.Phase == Aborting || s.Phase == Quitting || s.driven() && s.Lost != ""
	case RetryTimer:
		return s.Storage.Trial == Scheduled
	case SettleTimer:
		return s.Storage.Trial == Settling
	case PatienceTimer:
		return s.Silence == Asked
	case RebootTimer:
		return s.Power == RebootAwaited
	case TPMTimer:
		return s.TPM.Ending != "" && s.driven()
	case HoldTimer:
		return s.Hold.How == Held || s.Hold.How == Stopping
	}
	return false
}

// Expired: a timer has expired.
type Expired struct{ Timer Timer }

func (e Expired) hear(s *step) {
	if !s.runs(e.Timer) {
		return
	}
	switch e.Timer {
	case ButtonTimer:
		s.timer(ButtonTimer, PressInterval)
		s.press()
	case GraceTimer:
		s.graceOver()
	case KillTimer:
		s.overdue()
	case RetryTimer:
		s.retry()
	case SettleTimer:
		s.goesOn()
	case PatienceTimer:
		s.Silence = Silent
	case RebootTimer:
		s.forgetReboot()
	case TPMTimer:
		s.tpmLost()
	case HoldTimer:
		s.overstayed()
	}
}
