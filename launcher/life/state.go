// Package life is the life of one VM as its launcher leads it: Step says what a
// state becomes when something is heard, and what is to be done then. It is pure:
// time comes with the events, and what is to be done is data.
package life

import (
	"fmt"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// State is all that decides what comes next. The zero value waits for a start
// request.
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
	// Pause says why the guest's CPUs are stopped; without a status while they run.
	Pause control.Pause
	// Pauses counts them: an answer about one must not be taken for another's.
	Pauses int
	// Failed is the I/O error that QEMU told of last and that the guest is being
	// stopped for; without an operation and a text if there is none.
	Failed IOError

	// Lost is how QEMU's monitor ended; empty while it is there.
	Lost string
	// Panicked: a device of the guest's told QEMU so.
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
	// Keep has the launcher live on after a failure.
	Keep bool
	// Grace is the time from the power button to QEMU's end, in seconds.
	Grace int64
}

// Phase is where the VM is. It never goes back, but between Running and Paused.
type Phase int

// Phases, in order.
const (
	Waiting      Phase = iota // for a start request
	Preparing                 // disks and seed are being made
	Aborting                  // the same, and it was asked to end
	Starting                  // QEMU was started, and its guest does not run yet
	Running                   // the guest's CPUs run, as far as QEMU has told
	Paused                    // they are stopped, or run on trial
	ShuttingDown              // the power button was pressed
	Quitting                  // QEMU was told to quit
	Killing                   // QEMU was sent SIGKILL; only its exit is waited for
	Kept                      // the VM has ended; its launcher is to stay
	Ended                     // nothing comes any more
)

// Wish is what was asked of the launcher. It is never taken back.
type Wish int

// Wishes.
const (
	GoOn     Wish = iota
	Shutdown      // by a signal or virt-handler: in order
	Cancel        // by the launcher's own end: at once
)

// Power is whether the guest is on.
type Power int

// Powers. A guest that is to start anew by itself cannot be told from one that
// powers off for good, but by what it was asked for.
const (
	On            Power = iota
	RebootAwaited       // its next power-off is to be a reboot
	Restarting          // it has powered off for that, and does not run yet
	Off                 // it has powered off
)

// off says whether the guest has powered off.
func (p Power) off() bool { return p == Off || p == Restarting }

// Storage is how far the attempts are to go on after an I/O error.
type Storage struct {
	Trial Trial
	// Wait is how long the attempt that is waited for, or was made last, was waited for.
	Wait time.Duration
}

// Trial is what comes next for a guest that an I/O error stopped. QEMU keeps its
// requests, and makes them again when its CPUs run.
type Trial int

// Trials.
const (
	NoTrial   Trial = iota // it is not stopped for its storage
	Scheduled              // a timer runs until the next attempt
	Continued              // QEMU was told to let it run
	Settling               // it runs, and has to for a while
	Unpausing              // a user has it run; there is no timer meanwhile
)

// trying says whether the guest may be running without anybody having been told.
func (t Trial) trying() bool { return t == Continued || t == Settling }

// Silence is whether QEMU answers.
type Silence int

// Silences. A question stays open until it is answered.
const (
	Unasked Silence = iota
	Asked
	Silent // it has not answered for PatienceTime
)

// Cause is why the launcher ended the VM, or could not start it.
type Cause struct {
	Kind CauseKind
	// Text is the error behind it, in words.
	Text string
}

// CauseKind tells causes apart.
type CauseKind int

// Causes. What comes later replaces Quit only where it says more.
const (
	NoCause      CauseKind = iota // it ended by itself, or its launcher was ended
	NotStarted                    // it was asked to end before there was a VM
	NotStartable                  // preparation, QEMU's start or the handshake failed
	Quit                          // the launcher told QEMU to quit
	NotAgain                      // the guest powered off to start anew, and could not be
	Undrivable                    // QEMU's monitor was lost, and it was killed for that
)

// Timer is one of the loop's.
type Timer int

// Timers.
const (
	ButtonTimer   Timer = iota // until the power button is pressed again
	GraceTimer                 // until the grace period is over
	KillTimer                  // until what should have ended by itself is ended
	RetryTimer                 // until a guest that an I/O error stopped is let run
	SettleTimer                // until it is believed to run
	PatienceTimer              // until a QEMU that does not answer is called silent
	RebootTimer                // until a power-off is one again

	Timers // how many there are
)

// How long timers run.
const (
	// PressInterval: a guest whose ACPI driver is not up yet misses the power
	// button, so it is pressed again until the guest is down.
	PressInterval = 5 * time.Second
	// QuitTime is how long QEMU has to follow "quit", or to follow its monitor,
	// before it is killed.
	QuitTime = 5 * time.Second
	// Storage that failed is tried again after FirstRetry, and then after twice as
	// long each time, up to LastRetry. An attempt has succeeded when the guest has
	// run for SettleTime: one whose storage still fails stops again at once, and
	// would otherwise seem to run now and then.
	FirstRetry = 5 * time.Second
	LastRetry  = time.Minute
	SettleTime = 3 * time.Second
	// PatienceTime is how long QEMU has to answer before it is said to be silent.
	// Its main loop may wait that long for storage under load.
	PatienceTime = 10 * time.Second
	// RebootTime is how long a guest has to power off after the power button for
	// that to be taken for the reboot that was asked for.
	RebootTime = 3 * time.Minute
)

// Running timers follow from the state: whatever leaves it stops them.
func (s State) runs(t Timer) bool {
	switch t {
	case ButtonTimer, GraceTimer:
		return s.Phase == ShuttingDown
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
	}
	return false
}

// driven says whether QEMU is there and has not been told to end.
func (s State) driven() bool {
	return s.Phase == Starting || s.Phase == Running || s.Phase == Paused || s.Phase == ShuttingDown
}

// HasEnded says whether the VM has.
func (s State) HasEnded() bool { return s.Phase == Kept || s.Phase == Ended }

// Serves says whether there is a guest that ran and that nobody has told QEMU to end.
func (s State) Serves() bool { return s.driven() && !s.Ran.IsZero() }

// Shown is where a launcher is, in the words of the control protocol.
func (s State) Shown() control.State {
	switch s.Phase {
	case Waiting:
		return control.StateWaiting
	case Preparing, Aborting, Starting:
		return control.StatePreparing
	case Running:
		return control.StateRunning
	case Paused:
		return control.StatePaused
	case ShuttingDown:
		return control.StateShuttingDown
	case Kept, Ended:
		return control.StateExited
	}
	// Quitting and Killing are nothing that anybody is told of.
	switch {
	case s.Ran.IsZero() && s.Pause.Status == "":
		return control.StatePreparing
	case s.Wish == Shutdown:
		return control.StateShuttingDown
	case s.Pause.Status != "":
		return control.StatePaused
	}
	return control.StateRunning
}

// Report is what virt-handler is told, but for what the loop knows: the Machine,
// and QEMU's process.
func (s State) Report() control.StateReport {
	r := control.StateReport{State: s.Shown(), QEMUSilent: s.Silence == Silent}
	if !s.Ran.IsZero() {
		r.StartedAt = &s.Ran
	}
	if s.Pause.Status != "" {
		r.Pause = &s.Pause
	}
	if s.Phase == Kept {
		t := s.Termination()
		r.Failure = fmt.Sprintf("%s: %s", t.Reason, t.Message)
	}
	return r
}

// reported is what decides whether there is something to tell.
type reported struct {
	state   control.State
	ran     time.Time
	pause   control.Pause
	silence bool
}

func (s State) reported() reported {
	return reported{s.Shown(), s.Ran, s.Pause, s.Silence == Silent}
}
