package life

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
)

func TestMain(m *testing.M) { golden.Main(m, "testdata/*") }

const table = "testdata/table.txt"

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

	tpmKilled = TPMEnded{Exit: Exit{Signal: syscall.SIGKILL}, Said: "oh"}
)

// named is something with a name that stands in the table.
type named[V any] struct {
	name  string
	value V
}

// events has at least one of each type, and one for each case that a type tells apart.
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
	}
	for t := range Timers {
		list = append(list, named[Event]{timerNames[t] + " expired", Expired{t}})
	}
	return list
}

var timerNames = [Timers]string{"button", "grace", "kill", "retry", "settle", "patience", "reboot", "TPM"}

// states are reached, and no state of another make: each has what was heard on
// the way to it. All phases are among them, and all that a phase may hold.
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
		{"kept", []Event{keep, Prepared{errWhy}}},
		{"ended", []Event{Rejected{"no"}}},
	}
}

func reach(heard []Event) State {
	var s State
	for _, e := range heard {
		s, _ = Step(s, e)
	}
	return s
}

// impossible says why an event cannot come in a state; empty if it can. The
// random walk holds it to what does come.
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
	case OperationFailed, RestartFailed, ContinueFailed, ReasonTold, ProbeAnswered:
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

// TestTransitionTable compares every state and every event with the table of what follows.
// An event that cannot come stands there with the reason, and does nothing.
func TestTransitionTable(t *testing.T) {
	var b strings.Builder
	for _, from := range states() {
		before := reach(from.value)
		fmt.Fprintf(&b, "%s: %s\n", from.name, describe(before))
		idle, never := []string{}, map[string][]string{}
		var order []string // of what follows, by the first event that it follows from
		follows := map[string][]string{}
		for _, e := range events() {
			after, actions := Step(before, e.value)
			why, nothing := impossible(before, e.value), after == before && len(actions) == 0
			switch {
			case why != "" && !nothing:
				t.Errorf("%s, %s: cannot come (%s), and yet: %s %v", from.name, e.name, why, describe(after), actions)
			case why != "":
				never[why] = append(never[why], e.name)
			case nothing:
				idle = append(idle, e.name)
			default:
				what := strings.Join(append(difference(before, after), list(actions)...), "; ")
				if follows[what] == nil {
					order = append(order, what)
				}
				follows[what] = append(follows[what], e.name)
			}
		}
		for _, what := range order {
			fmt.Fprintf(&b, "  %s → %s\n", strings.Join(follows[what], ", "), what)
		}
		fmt.Fprintf(&b, "  nothing: %s\n", strings.Join(idle, ", "))
		for _, why := range []string{"nothing is being prepared", "QEMU is not being started", "nobody shakes hands yet", "nothing was asked of QEMU yet",
			"the guest does not leave", "no guest comes", "there is no QEMU yet", "QEMU has ended", "QEMU has no monitor", "the timer does not run", "the loop has ended"} {
			if names := never[why]; names != nil {
				fmt.Fprintf(&b, "  cannot come, for %s: %s\n", why, strings.Join(names, ", "))
			}
			delete(never, why)
		}
		if len(never) > 0 {
			t.Errorf("reasons that are not listed: %v", never)
		}
	}
	golden.Compare(t, table, b.String())
}

// describe is a state without what is zero.
func describe(s State) string {
	d := difference(State{}, s)
	if s.Phase == Waiting {
		d = append([]string{"Waiting"}, d...)
	}
	return strings.Join(d, ", ")
}

var (
	phaseNames   = []string{"Waiting", "Preparing", "Aborting", "Starting", "Receiving", "Received", "Running", "Paused", "ShuttingDown", "Quitting", "Killing", "Kept", "Ended"}
	powerNames   = []string{"On", "RebootAwaited", "Restarting", "Off"}
	trialNames   = []string{"NoTrial", "Scheduled", "Continued", "Settling", "Unpausing"}
	silenceNames = []string{"Unasked", "Asked", "Silent"}
	wishNames    = []string{"GoOn", "Shutdown", "Cancel"}
	causeNames   = []string{"NoCause", "NotStarted", "NotStartable", "NoTPM", "Quit", "Crashed", "NotAgain", "Undrivable", "Moved", "Scattered"}
	leavingNames = []string{"Staying", "Copying", "Halted", "Switching", "Taking", "Trailing", "Torn", "Left"}
	memoryNames  = []string{"Here", "Coming"}
	lettingNames = []string{"NotLet", "BeingLet", "Let"}
)

// difference is what has changed, field by field.
func difference(a, b State) []string {
	var out []string
	add := func(changed bool, format string, args ...any) {
		if changed {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	add(a.Phase != b.Phase, "%s", phaseNames[b.Phase])
	add(a.Wish != b.Wish, "wish %s", wishNames[b.Wish])
	add(a.Order.Grace != b.Order.Grace, "grace %d s", b.Order.Grace)
	add(a.Order.Paused != b.Order.Paused, "to start paused")
	add(a.Order.Incoming != b.Order.Incoming, "incoming")
	add(a.Leaving != b.Leaving, "leaving %s", leavingNames[b.Leaving])
	add(a.PostCopy != b.PostCopy, "post-copy %t", b.PostCopy)
	add(a.Memory != b.Memory, "memory %s", memoryNames[b.Memory])
	add(a.Letting != b.Letting, "%s", lettingNames[b.Letting])
	add(a.Order.NoACPI != b.Order.NoACPI, "no ACPI")
	add(a.Order.Keep != b.Order.Keep, "to be kept")
	add(a.Ran != b.Ran, "ran at %v", b.Ran.Sub(begin))
	add(a.Pressed != b.Pressed, "pressed at %v", b.Pressed.Sub(begin))
	add(a.Power != b.Power, "power %s", powerNames[b.Power])
	add(a.Storage.Trial != b.Storage.Trial, "storage %s", trialNames[b.Storage.Trial])
	add(a.Silence != b.Silence, "silence %s", silenceNames[b.Silence])
	add(a.Pause != b.Pause, "pause %q", strings.TrimSpace(b.Pause.Status+" "+b.Pause.Disk))
	add(a.Failed != b.Failed, "failed %q", b.Failed.Disk)
	add(a.TPM.Ending != b.TPM.Ending && b.TPM.Ending != "", "TPM ending")
	add(a.TPM.Lost != b.TPM.Lost, "TPM lost")
	add(a.TPM.Early != b.TPM.Early, "TPM early")
	add(a.Lost != b.Lost, "monitor lost")
	add(a.Panicked != b.Panicked, "panicked %t", b.Panicked)
	add(a.LastShutdown != b.LastShutdown, "last shutdown %q", b.LastShutdown)
	add(a.Cause != b.Cause, "cause %s %q", causeNames[b.Cause.Kind], b.Cause.Text)
	add(a.Exit != b.Exit, "exit %s", b.Exit)
	if b.HasEnded() && !a.HasEnded() {
		t := b.Termination()
		add(true, "%s: %s", t.Reason, t.Message)
	}
	return out
}

func list(actions []Action) (out []string) {
	for _, a := range actions {
		switch a := a.(type) {
		case StartTimer:
			out = append(out, fmt.Sprintf("start %s timer %v", timerNames[a.Timer], a.After))
		case StopTimer:
			out = append(out, fmt.Sprintf("stop %s timer", timerNames[a.Timer]))
		case plain:
			out = append(out, string(a))
		case Answer:
			out = append(out, strings.TrimSpace("Answer "+a.Refusal))
		default:
			out = append(out, strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%T%+v", a, a), "life."), "{}"))
		}
	}
	return out
}

// TestTransitionTableIsWhole: what is declared in this package and missing in the lists
// above would be missing in the table.
func TestTransitionTableIsWhole(t *testing.T) {
	eventTypes, constants := declared(t)
	var listed []string
	for _, e := range events() {
		listed = append(listed, strings.TrimPrefix(fmt.Sprintf("%T", e.value), "life."))
	}
	for _, name := range eventTypes {
		if !slices.Contains(listed, name) {
			t.Errorf("no event of type %s is in the table", name)
		}
	}
	reached := map[string]bool{}
	for _, s := range states() {
		s := reach(s.value)
		for _, name := range []string{phaseNames[s.Phase], powerNames[s.Power], trialNames[s.Storage.Trial], silenceNames[s.Silence], wishNames[s.Wish], causeNames[s.Cause.Kind], leavingNames[s.Leaving], memoryNames[s.Memory], lettingNames[s.Letting]} {
			reached[name] = true
		}
	}
	for kind, names := range map[string][]string{"Phase": phaseNames, "Power": powerNames, "Trial": trialNames, "Silence": silenceNames, "Wish": wishNames, "CauseKind": causeNames, "Leaving": leavingNames, "Memory": memoryNames, "Letting": lettingNames} {
		if !slices.Equal(constants[kind], names) {
			t.Errorf("the constants of %s are %v, the test has %v", kind, constants[kind], names)
		}
		for _, name := range names {
			if !reached[name] {
				t.Errorf("no state of the table has %s %s", kind, name)
			}
		}
	}
}

// declared are the package's types that are events, and its enumerations.
func declared(t *testing.T) (eventTypes []string, constants map[string][]string) {
	t.Helper()
	constants = map[string][]string{}
	files := token.NewFileSet()
	for _, name := range sources(t) {
		file, err := parser.ParseFile(files, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil && d.Name.Name == "hear" {
					eventTypes = append(eventTypes, d.Recv.List[0].Type.(*ast.Ident).Name)
				}
			case *ast.GenDecl:
				kind := ""
				for _, spec := range d.Specs {
					v, ok := spec.(*ast.ValueSpec)
					if d.Tok != token.CONST || !ok {
						continue
					}
					if id, ok := v.Type.(*ast.Ident); ok {
						kind = id.Name
					}
					constants[kind] = append(constants[kind], v.Names[0].Name)
				}
			}
		}
	}
	if len(eventTypes) < 20 {
		t.Fatalf("only %d types of events were found", len(eventTypes))
	}
	return eventTypes, constants
}

// sources are the names of the files of the package, without those of its tests.
func sources(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return strings.HasSuffix(name, "_test.go") })
	if len(names) < 5 {
		t.Fatalf("only these sources were found: %v", names)
	}
	return names
}

// TestTimeComesWithTheEvents: time comes with the events.
func TestTimeComesWithTheEvents(t *testing.T) {
	for _, name := range sources(t) {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if p, ok := s.X.(*ast.Ident); ok && p.Name == "time" && !slices.Contains([]string{"Time", "Duration", "Second", "Minute"}, s.Sel.Name) {
					t.Errorf("%s uses time.%s", name, s.Sel.Name)
				}
			}
			return true
		})
	}
}
