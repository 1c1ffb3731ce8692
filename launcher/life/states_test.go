package life

import (
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"
)

// begin is when every test's life begins.
var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return begin.Add(time.Duration(seconds * float64(time.Second))) }

var (
	errLost = errors.New("lost")
	errWhy  = errors.New("why")
	start   = StartAsked{Order{Grace: 30}}
	full    = IOFailed{IOError{Disk: "root", Operation: "write", Text: "full", NoSpace: true}}
	off     = PoweredDown{Guest: true, Reason: "guest-shutdown"}
	softly  = OperationAsked{Operation: SoftReboot}
	sigterm = ShutdownAsked{At: at(100)}
	hold    = HoldAsked{Job: 3, Bound: time.Second}

	tpmKilled = TPMEnded{Exit: Exit{Signal: syscall.SIGKILL}, Said: "oh"}
)

// named is something by whose name tests speak of it.
type named[V any] struct {
	name  string
	value V
}

// events returns at least one event of each type, and one for each case that a type tells apart.
func events() []named[Event] {
	list := []named[Event]{
		{"start asked", start},
		{"paused start asked", StartAsked{Order{Paused: true, Grace: 30}}},
		{"incoming start asked", StartAsked{Order{Incoming: true, Grace: 30}}},
		{"rejected", Rejected{"no"}},
		{"migrate asked", MigrateAsked{}},
		{"migrate asked while QEMU is busy", MigrateAsked{Busy: true}},
		{"switchover asked", SwitchoverAsked{}},
		{"post-copy begun", PostCopyBegun{}},
		{"memory trails", MemoryTrails{}},
		{"migrated", MigrationEnded{}},
		{"migration failed", MigrationEnded{Err: errWhy}},
		{"memory torn", MigrationEnded{errWhy, true}},
		{"take back asked", TakeBackAsked{}},
		{"release asked", ReleaseAsked{}},
		{"received but the memory", AllButMemory{}},
		{"received", ReceptionEnded{}},
		{"reception failed", ReceptionEnded{errWhy}},
		{"run asked", RunAsked{At: at(4)}},
		{"paused run asked", RunAsked{Paused: true, At: at(4)}},
		{"let run", RunAnswered{}},
		{"run failed", RunFailed{Err: errWhy}},
		{"run failed unheard", RunFailed{errWhy, true}},
		{"pause asked", OperationAsked{Operation: Pause}},
		{"unpause asked", OperationAsked{Operation: Unpause}},
		{"reset asked", OperationAsked{Operation: Reset}},
		{"soft reboot asked", softly},
		{"soft reboot by agent asked", OperationAsked{SoftReboot, Agent{Connected: true}}},
		{"soft reboot while frozen asked", OperationAsked{SoftReboot, Agent{Connected: true, Frozen: true}}},
		{"shutdown asked", sigterm},
		{"grace shortened", GraceShortened{20, at(105)}},
		{"grace shortened to the past", GraceShortened{5, at(105)}},
		{"grace lengthened", GraceShortened{3600, at(105)}},
		{"canceled", Canceled{}},
		{"prepared", Prepared{}},
		{"preparation failed", Prepared{errWhy}},
		{"exec failed", ExecFailed{errWhy}},
		{"handshaken", Handshaken{at(2)}},
		{"handshake failed", HandshakeFailed{errWhy}},
		{"pause failed", OperationFailed{Pause}},
		{"unpause failed", OperationFailed{Unpause}},
		{"reset failed", OperationFailed{Reset}},
		{"soft reboot failed", OperationFailed{SoftReboot}},
		{"restart failed", RestartFailed{errWhy}},
		{"continue failed", ContinueFailed{}},
		{"reason told", ReasonTold{Pause: 1, Status: "internal-error"}},
		{"reason of another pause told", ReasonTold{Pause: 7, Status: "internal-error"}},
		{"told that it runs", ReasonTold{Pause: 1, Status: "running", Running: true}},
		{"probe answered", ProbeAnswered{}},
		{"RESUME", Resumed{at(3)}},
		{"STOP", Stopped{}},
		{"SHUTDOWN by the guest", off},
		{"SHUTDOWN by the host", PoweredDown{Reason: "host-signal"}},
		{"GUEST_PANICKED", Panic{}},
		{"GUEST_PANICKED and kept", Panic{Kept: true}},
		{"BLOCK_IO_ERROR", full},
		{"monitor lost", MonitorLost{errLost}},
		{"QEMU exited", QEMUExited{}},
		{"QEMU failed", QEMUExited{Exit{Code: 1}}},
		{"QEMU killed", QEMUExited{Exit{Signal: syscall.SIGKILL}}},
		{"probed", Probed{}},
		{"TPM ended", tpmKilled},
		{"hold asked", hold},
		{"hold asked while QEMU is busy", HoldAsked{Job: 4, Bound: time.Second, Busy: true}},
		{"hold over", HoldOver{3}},
		{"hold of another job over", HoldOver{4}},
		{"hold failed", HoldFailed{3, errWhy}},
		{"hold of another job failed", HoldFailed{4, errWhy}},
		{"let go", LetGoAnswered{Job: 3}},
		{"let go failed", LetGoAnswered{3, errWhy}},
	}
	for t := range Timers {
		list = append(list, named[Event]{timerNames[t] + " expired", Expired{t}})
	}
	return list
}

var timerNames = [Timers]string{"button", "grace", "kill", "retry", "settle", "patience", "reboot", "TPM", "hold"}

// states returns the states that tests look at, each as what was heard on the way to it. So each of them can be
// reached. All phases are among them, and all that a phase may hold.
func states() []named[[]Event] {
	running := []Event{start, Prepared{}, Handshaken{at(1)}}
	then := func(before []Event, more ...Event) []Event { return slices.Concat(before, more) }
	starting := []Event{start, Prepared{}}
	pausedStart := []Event{StartAsked{Order{Paused: true, Grace: 30}}, Prepared{}, Handshaken{at(1)}}
	byUser := then(running, Stopped{})
	scheduled := then(running, full, Stopped{})
	continued := then(scheduled, Expired{RetryTimer})
	settling := then(continued, Resumed{at(9)})
	restarting := then(running, softly, off)
	shutting := then(running, sigterm)
	quitting := then(shutting, Expired{GraceTimer})
	keep := StartAsked{Order{Keep: true, Grace: 30}}
	receiving := []Event{StartAsked{Order{Incoming: true, Grace: 30}}, Prepared{}, Handshaken{at(1)}}
	received := then(receiving, ReceptionEnded{})
	copying := then(running, MigrateAsked{})
	halted := then(copying, Stopped{})
	switching := then(halted, SwitchoverAsked{})
	left := then(switching, MigrationEnded{})
	pausedCopying := then(byUser, MigrateAsked{})
	trailing := then(switching, MemoryTrails{})
	coming := then(receiving, AllButMemory{})
	stopping := then(running, hold)
	held := then(stopping, Stopped{})
	return []named[[]Event]{
		{"waiting", nil},
		{"preparing", starting[:1]},
		{"aborting", then(starting[:1], sigterm)},
		{"starting", starting},
		{"starting, monitor lost", then(starting, MonitorLost{errLost})},
		{"running", running},
		{"running, no ACPI", []Event{StartAsked{Order{NoACPI: true, Grace: 30}}, Prepared{}, Handshaken{at(1)}}},
		{"running, no grace", []Event{StartAsked{}, Prepared{}, Handshaken{at(1)}}},
		{"running, to be kept", []Event{keep, Prepared{}, Handshaken{at(1)}}},
		{"running, probed", then(running, Probed{})},
		{"running, silent", then(running, Probed{}, Expired{PatienceTimer})},
		{"running, TPM ended", then(running, tpmKilled)},
		{"starting, TPM ended", then(starting, tpmKilled)},
		{"killing, TPM lost before", then(starting, tpmKilled, Expired{TPMTimer})},
		{"running, TPM ended before", then(starting, tpmKilled, Handshaken{at(1)})},
		{"received, TPM ended", then(received, tpmKilled)},
		{"received, memory coming, TPM ended", then(coming, tpmKilled)},
		{"running, TPM lost", then(running, tpmKilled, Expired{TPMTimer})},
		{"running, I/O failed", then(running, full)},
		{"running, panicked", then(running, Panic{})},
		{"running, reboot awaited", then(running, softly)},
		{"running, restarting", restarting},
		{"running, off", then(running, off)},
		{"running, monitor lost", then(running, MonitorLost{errLost})},
		{"paused", byUser},
		{"paused from the start", pausedStart},
		{"paused, reboot awaited", then(running, softly, Stopped{})},
		{"paused, retry scheduled", scheduled},
		{"paused, on trial", continued},
		{"paused, settling", settling},
		{"paused, being unpaused", then(scheduled, OperationAsked{Operation: Unpause})},
		{"paused for storage, monitor lost", then(scheduled, MonitorLost{errLost})},
		{"receiving", receiving},
		{"received", received},
		{"received, being let run", then(received, RunAsked{At: at(4)})},
		{"received, let run", then(received, RunAsked{At: at(4)}, RunAnswered{})},
		{"running, received", then(received, Resumed{at(5)})},
		{"received, memory coming", coming},
		{"received, memory coming, being let run", then(coming, RunAsked{At: at(4)})},
		{"running, memory coming", then(coming, Resumed{at(5)})},
		{"paused, memory coming", then(coming, RunAsked{Paused: true, At: at(5)})},
		{"shutting down, memory coming", then(coming, Resumed{at(5)}, sigterm)},
		{"killing, scattered", then(coming, Resumed{at(5)}, ReceptionEnded{errWhy})},
		{"running, received after all", then(coming, Resumed{at(5)}, ReceptionEnded{})},
		{"copying", copying},
		{"copying, I/O failed", then(copying, full)},
		{"copying, stopped for storage", then(copying, full, Stopped{})},
		{"copying, off", then(copying, off)},
		{"copying, paused", pausedCopying},
		{"copying, shutting down", then(copying, sigterm)},
		{"halted", halted},
		{"halted, shutting down", then(halted, sigterm)},
		{"switching", switching},
		{"switching, monitor lost", then(switching, MonitorLost{errLost})},
		{"taking back", then(switching, TakeBackAsked{})},
		{"copying, to trail", then(copying, PostCopyBegun{})},
		{"switching, to trail", then(copying, PostCopyBegun{}, Stopped{}, SwitchoverAsked{})},
		{"switching, to trail, to end later", then(copying, PostCopyBegun{}, Stopped{}, SwitchoverAsked{}, sigterm)},
		{"trailing", trailing},
		{"trailing, to end later", then(trailing, sigterm)},
		{"trailing, monitor lost", then(trailing, MonitorLost{errLost})},
		{"trailing, paused", then(pausedCopying, SwitchoverAsked{}, MemoryTrails{})},
		{"torn", then(trailing, MigrationEnded{errWhy, true})},
		{"killing, taken back while trailing", then(trailing, TakeBackAsked{})},
		{"left", left},
		{"left, paused", then(pausedCopying, SwitchoverAsked{}, MigrationEnded{})},
		{"quitting, released", then(left, ReleaseAsked{})},
		{"shutting down", shutting},
		{"shutting down, silent", then(shutting, Probed{}, Expired{PatienceTimer})},
		{"shutting down, I/O failed", then(shutting, full)},
		{"shutting down, retry scheduled", then(shutting, full, Stopped{})},
		{"shutting down, settling", then(settling, sigterm)},
		{"shutting down, restarting", then(restarting, sigterm)},
		{"shutting down, off", then(shutting, off)},
		{"shutting down, monitor lost", then(shutting, MonitorLost{errLost})},
		{"killing, paused from the start", then(pausedStart, sigterm)},
		{"quitting", quitting},
		{"quitting, off", then(quitting, off)},
		{"quitting, monitor lost", then(quitting, MonitorLost{errLost})},
		{"quitting, not asked to", then(running, off, Stopped{})},
		{"quitting, panicked while a reboot was awaited", then(running, softly, Panic{Kept: true})},
		{"quitting, not again", then(restarting, RestartFailed{errWhy})},
		{"quitting, restarting", then(restarting, sigterm, Expired{GraceTimer})},
		{"killing, overdue", then(quitting, Expired{KillTimer})},
		{"killing, not drivable", then(running, MonitorLost{errLost}, Expired{KillTimer})},
		{"killing, aborted", then(starting, sigterm)},
		{"killing, handshake failed", then(starting, HandshakeFailed{errWhy})},
		{"killing, canceled", then(running, Canceled{})},
		{"stopping for a job", stopping},
		{"stopping for a job that is over", then(stopping, HoldOver{3})},
		{"stopping for a job, I/O failed", then(stopping, full)},
		{"stopping for a job, monitor lost", then(stopping, MonitorLost{errLost})},
		{"stopping for a job, off", then(stopping, off)},
		{"held", held},
		{"held, paused", then(byUser, hold)},
		{"held, I/O failed", then(held, full)},
		{"held, monitor lost", then(held, MonitorLost{errLost})},
		{"held, shutting down", then(held, sigterm)},
		{"held, shutting down, I/O failed", then(held, sigterm, full)},
		{"letting go", then(held, HoldOver{3})},
		{"letting go, shutting down", then(held, sigterm, HoldOver{3})},
		{"letting go, not halted", then(stopping, HoldFailed{3, errWhy})},
		{"kept", []Event{keep, Prepared{errWhy}}},
		{"ended", []Event{Rejected{"no"}}},
	}
}

// find returns the value that has a name.
func find[V any](t *testing.T, list []named[V], name string) (found V) {
	t.Helper()
	for _, n := range list {
		if n.name == name {
			return n.value
		}
	}
	t.Fatalf("nothing is named %q", name)
	return found
}

// stepped takes a state and an event by their names, and returns the state, the next state and the actions.
func stepped(t *testing.T, state, event string) (before, after State, did []Action) {
	t.Helper()
	before = reach(find(t, states(), state))
	after, did = Step(before, find(t, events(), event))
	return before, after, did
}

func reach(heard []Event) State {
	var s State
	for _, e := range heard {
		s, _ = Step(s, e)
	}
	return s
}

// impossible returns why an event cannot come in a state, or an empty text if it can. The random walk checks it
// against what does come.
func impossible(s State, e Event) string {
	started := s.Phase > Starting
	switch e := e.(type) {
	case Prepared:
		if s.Phase != Preparing && s.Phase != Aborting {
			return "nothing is being prepared"
		}
	case ExecFailed:
		if s.Phase != Starting || s.Lost != "" {
			return "QEMU is not being started"
		}
	case Handshaken, HandshakeFailed:
		if s.Phase < Starting {
			return "nobody shakes hands yet"
		}
	case MigrationEnded:
		if s.Leaving == Staying {
			return "the guest does not leave"
		}
	case MemoryTrails:
		if s.Leaving == Staying {
			return "the guest does not leave"
		}
	case AllButMemory, ReceptionEnded, RunAnswered, RunFailed:
		if !s.Order.Incoming || !started {
			return "no guest comes"
		}
	case HoldFailed, LetGoAnswered, OperationFailed, RestartFailed, ContinueFailed, ReasonTold, ProbeAnswered:
		if !started {
			return "nothing was asked of QEMU yet"
		}
	case TPMEnded:
		if s.Phase < Starting {
			return "there is no QEMU yet"
		}
	case Resumed, Stopped, PoweredDown, Panic, IOFailed, MonitorLost, QEMUExited:
		_, exited := e.(QEMUExited)
		switch {
		case s.Phase < Starting:
			return "there is no QEMU yet"
		case s.Phase >= Kept:
			return "QEMU has ended"
		case s.Lost != "" && !exited:
			return "QEMU has no monitor"
		}
	case Expired:
		if !s.runs(e.Timer) {
			return "the timer does not run"
		}
	}
	if s.Phase == Ended {
		return "the loop has ended"
	}
	return ""
}
