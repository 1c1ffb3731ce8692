// Package life decides the life of one VM: Step takes a state and an event, and returns the
// next state and the actions for the launcher. Step is pure: events bring the time, and
// actions are data.
package life

import (
	"fmt"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// State is everything that decides what comes next. The zero value waits for a start request.
type State struct {
	Phase Phase
	Order Order
	// Wish is what the launcher was asked to do with the VM.
	Wish Wish
	// Ran is when the guest's CPUs first ran; zero before.
	Ran time.Time
	// Pressed is when the grace period began.
	Pressed time.Time

	Power   Power
	Storage Storage
	Silence Silence
	// Pause says why the guest's CPUs are stopped. Its Status is empty while they run.
	Pause control.Pause
	// Pauses counts the pauses and their ends: QEMU's answer about one pause must not be taken for another's, or for the
	// time after it.
	Pauses int
	// Failed is the last I/O error for which QEMU stops the guest; zero if there is none.
	Failed IOError
	// Hold is the job for which the guest stands.
	Hold Hold
	// Leaving is how far the guest is on its way to another QEMU.
	Leaving Leaving
	// Came: QEMU has got a guest that ran in another QEMU. The guest's memory may still be coming.
	Came bool
	// PostCopy: the guest that leaves was told to leave before its memory.
	PostCopy bool
	// Memory is Coming for a guest that was received before its memory.
	Memory Memory
	// Letting is how far QEMU is with the word to let a received guest run.
	Letting Letting
	TPM     TPM

	// Lost is the error that ended QEMU's monitor; empty while the monitor works.
	Lost string
	// Panicked: a device of the guest told QEMU that the guest's kernel panicked.
	Panicked bool
	// LastShutdown is the cause in QEMU's last SHUTDOWN event.
	LastShutdown string

	// Cause is why the launcher ended the VM, and Exit how QEMU's process ended.
	Cause Cause
	Exit  Exit
}

// Order is what the start request says about the VM's life.
type Order struct {
	// Paused: the guest's CPUs are not to run yet.
	Paused bool
	// NoACPI: the guest has no power button.
	NoACPI bool
	// EndsOnReboot: QEMU ends where it would reset the guest.
	EndsOnReboot bool
	// Incoming: the guest comes from another QEMU.
	Incoming bool
	// Keep has the launcher live on after a failure.
	Keep bool
	// Grace is the time from the power button to QEMU's end, in seconds.
	Grace int64
}

// Phase is how far the VM has come. It never goes back, except between Running and Paused.
type Phase int

// Phases, in order.
const (
	Waiting      Phase = iota // for a start request
	Preparing                 // disks and seed are being made
	Aborting                  // as Preparing, and the launcher was asked to end
	Starting                  // QEMU was started, and its guest does not run yet
	Receiving                 // QEMU waits for the guest of another QEMU
	Received                  // QEMU has that guest, whose CPUs are stopped
	Running                   // the guest's CPUs run, as far as QEMU has told
	Paused                    // the guest's CPUs are stopped, or run on trial
	ShuttingDown              // the power button was pressed
	Quitting                  // QEMU was told to quit
	Killing                   // QEMU was sent SIGKILL; its exit is awaited
	Kept                      // the VM has ended; its launcher stays
	Ended                     // the launcher ends; further events change nothing
)

// Wish is how the launcher was asked to end the VM. The first request stands.
type Wish int

// Wishes.
const (
	GoOn     Wish = iota
	Shutdown      // by a signal or virt-handler: the guest shuts down
	Cancel        // by the end of the launcher: at once
)

// Power is whether the guest is on.
type Power int

// Powers. A soft reboot by the power button makes the guest power off, as if for good. Only
// the pending request tells the two apart.
const (
	On            Power = iota
	RebootAwaited       // the next power-off counts as the reboot
	Restarting          // the guest has powered off to reboot, and does not run yet
	Off                 // the guest has powered off
)

// off reports whether the guest has powered off.
func (p Power) off() bool { return p == Off || p == Restarting }

// Storage is how far the attempts are to let a guest run again after an I/O error.
type Storage struct {
	Trial Trial
	// Wait is the wait before the attempt that is scheduled, or was made last.
	Wait time.Duration
}

// Trial is the next step for a guest that an I/O error stopped. QEMU keeps the guest's
// requests, and makes them again when the CPUs run.
type Trial int

// Trials.
const (
	NoTrial   Trial = iota // the guest is not stopped for an I/O error
	Scheduled              // a timer runs until the next attempt
	Continued              // QEMU was told to let the guest run
	Settling               // the guest runs, and must run on for SettleTime
	Unpausing              // a user lets the guest run; there is no timer meanwhile
)

// trying reports whether the guest may run although its pause is still reported.
func (t Trial) trying() bool { return t == Continued || t == Settling }

// Silence is whether QEMU answers.
type Silence int

// Silences. The question to QEMU (Probe) stays open until QEMU answers.
const (
	Unasked Silence = iota
	Asked
	Silent // QEMU has not answered for PatienceTime
)

// Cause is why the launcher ended the VM, or could not start it.
type Cause struct {
	Kind CauseKind
	// Text is the error in words.
	Text string
}

// CauseKind tells causes apart.
type CauseKind int

// Causes. A later cause replaces Quit only if it says more.
const (
	NoCause      CauseKind = iota // QEMU ended by itself, or the launcher was ended
	NotStarted                    // the launcher was asked to end before there was a VM
	NotStartable                  // preparation, QEMU's start or the handshake failed
	NoTPM                         // the emulator of the TPM ended before the guest ran; the text says how
	Quit                          // the launcher told QEMU to quit
	Crashed                       // the guest's kernel panicked, and the launcher told QEMU to quit
	NotAgain                      // the guest powered off to reboot, and QEMU did not start it again
	Undrivable                    // QEMU's monitor was lost, and QEMU was killed for that
	Moved                         // the guest runs elsewhere
	Scattered                     // the guest was on its way, and no QEMU has all of it
)

// Follows reports whether the memory of the guest follows it, or is about to.
func (s State) Follows() bool { return s.Leaving == Trailing || s.Leaving == Switching && s.PostCopy }

// endsLater reports whether a launcher that was asked to end still sends the memory of a guest that runs elsewhere.
func (s State) endsLater() bool {
	return s.Follows() && s.Wish == Shutdown && (s.Phase == Running || s.Phase == Paused)
}

// outlives reports whether QEMU is there although its guest has powered off by itself. QEMU may wait for the program
// behind a file system, or for storage.
func (s State) outlives() bool {
	return s.Power == Off && (s.Phase == Running || s.Phase == Paused) && !s.Leaving.decided() && !s.endsLater()
}

// driven reports whether QEMU is there and has not been told to end.
func (s State) driven() bool {
	switch s.Phase {
	case Starting, Receiving, Received, Running, Paused, ShuttingDown:
		return true
	}
	return false
}

// HasEnded reports whether the VM has ended.
func (s State) HasEnded() bool { return s.Phase == Kept || s.Phase == Ended }

// Serves reports whether the guest has run and QEMU was not told to end.
func (s State) Serves() bool { return s.driven() && !s.Ran.IsZero() }

// Moveable reports whether a channel to another QEMU, or from one, may be opened.
func (s State) Moveable() bool {
	return s.Phase == Receiving ||
		(s.Phase == Running || s.Phase == Paused) && s.Leaving == Staying && s.Memory == Here && !s.Ran.IsZero()
}

// Stays reports whether the guest is on its way neither to another QEMU nor from one.
func (s State) Stays() bool {
	return s.Leaving == Staying && s.Memory == Here && s.Phase != Receiving && s.Phase != Received
}

// Shown returns the state in the words of the control protocol.
func (s State) Shown() control.State {
	if s.Leaving.decided() && !s.HasEnded() {
		return control.StateMoved
	}
	switch s.Phase {
	case Waiting:
		return control.StateWaiting
	case Preparing, Aborting, Starting:
		return control.StatePreparing
	case Receiving:
		return control.StateReceiving
	case Received:
		return control.StateReceived
	case Running:
		return control.StateRunning
	case Paused:
		return control.StatePaused
	case ShuttingDown:
		return control.StateShuttingDown
	case Kept, Ended:
		return control.StateExited
	}
	// The protocol has no word for Quitting and Killing. Shown stays at the state before them.
	switch {
	case s.Ran.IsZero() && s.Order.Incoming:
		return control.StateReceiving
	case s.Ran.IsZero() && s.Pause.Status == "":
		return control.StatePreparing
	case s.Wish == Shutdown:
		return control.StateShuttingDown
	case s.Pause.Status != "":
		return control.StatePaused
	}
	return control.StateRunning
}

// Report returns the state report for virt-handler. The loop adds what it alone knows: the Machine, QEMU's process
// and the jobs.
func (s State) Report() control.StateReport {
	r := control.StateReport{State: s.Shown(), QEMUSilent: s.Silence == Silent}
	if !s.Ran.IsZero() {
		r.StartedAt = &s.Ran
	}
	if s.Pause.Status != "" {
		r.Pause = &s.Pause
	}
	r.TPMLost = s.TPM.Lost
	// A launcher whose guest does not come says why: its pod is deleted before anybody reads its end.
	if s.Phase == Kept || s.Phase == Ended && s.Order.Incoming && !s.Came {
		t := s.Termination()
		r.Failure = fmt.Sprintf("%s: %s", t.Reason, t.Message)
	}
	return r
}

// reported is the part of the state whose change is worth a report.
type reported struct {
	state   control.State
	ran     time.Time
	pause   control.Pause
	silence bool
	tpmLost string
}

func (s State) reported() reported {
	return reported{s.Shown(), s.Ran, s.Pause, s.Silence == Silent, s.TPM.Lost}
}
