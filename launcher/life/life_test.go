package life

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

var (
	exit0  = QEMUExited{}
	killed = QEMUExited{Exit{Signal: syscall.SIGKILL}}
	quits  = PoweredDown{Reason: "host-qmp-quit"}
)

// TestHowWholeLivesEnd: a whole life ends as its events say, and on the way the launcher does what it must about
// QEMU and its guest.
func TestHowWholeLivesEnd(t *testing.T) {
	paused := StartAsked{Order{Paused: true, Grace: 1}}
	noACPI := StartAsked{Order{NoACPI: true, Grace: 3600}}
	once, reset := StartAsked{Order{EndsOnReboot: true, Grace: 30}}, PoweredDown{Guest: true, Reason: "guest-reset"}
	const rebooted = "the guest rebooted, and its rebootPolicy is Terminate"
	ran := []Event{start, Prepared{}, Resumed{at(1)}, Handshaken{at(1)}}
	after := func(first Event, more ...Event) []Event {
		return append([]Event{first, Prepared{}, Resumed{at(1)}, Handshaken{at(1)}}, more...)
	}
	for _, tt := range []struct {
		name    string
		heard   []Event
		did     string
		reason  control.Reason
		message string
	}{
		{"powers off", after(start, off, exit0), "", control.ReasonGuestShutdown, "the guest powered off"},
		{"powers off, and is told to quit meanwhile", after(start, off, sigterm, Expired{GraceTimer}, quits, exit0),
			"Press AskAgent TellQuit", control.ReasonShutdown, "the guest powered off after the ACPI power button"},
		{"resets", after(start, Resumed{at(5)}, off, exit0), "", control.ReasonGuestShutdown, "the guest powered off"},
		{"ends by a reboot", after(once, reset, exit0), "", control.ReasonGuestShutdown, rebooted},
		{"ends by a user's reset",
			after(once, OperationAsked{Operation: Reset}, PoweredDown{Reason: "host-qmp-system-reset"}, exit0), "Operate",
			control.ReasonGuestShutdown, rebooted},
		{"ends by a soft reboot", after(once, softly, off, exit0), "Press", control.ReasonGuestShutdown,
			"the guest powered off"},
		{"ends by a soft reboot of its agent", after(once, OperationAsked{SoftReboot, Agent{Connected: true}}, reset, exit0),
			"Reboot", control.ReasonGuestShutdown, rebooted},
		{"reboots in place of powering off", after(once, sigterm, reset, exit0), "Press AskAgent", control.ReasonShutdown,
			"the guest powered off after the ACPI power button"},
		{"is ended by a reset that nobody ordered", after(start, PoweredDown{Reason: "host-qmp-system-reset"}, exit0), "",
			control.ReasonQEMUExited, `QEMU exited with code 0 (shutdown reason "host-qmp-system-reset")`},
		{"heeds the power button", after(start, sigterm, off, exit0), "Press AskAgent", control.ReasonShutdown,
			"the guest powered off after the ACPI power button"},
		{"heeds it the second time", after(start, sigterm, Expired{ButtonTimer}, off, exit0), "Press AskAgent Press",
			control.ReasonShutdown, "the guest powered off after the ACPI power button"},
		{"is asked to end again and again", after(start, sigterm, sigterm, sigterm, Expired{GraceTimer}, quits, exit0),
			"Press AskAgent TellQuit", control.ReasonGracePeriodOver,
			"the guest did not power off within 30 seconds; QEMU was ended"},
		{"has no grace period", after(StartAsked{}, sigterm, quits, exit0), "TellQuit", control.ReasonGracePeriodOver,
			"the guest did not power off within 0 seconds; QEMU was ended"},
		{"has no ACPI", after(noACPI, sigterm, quits, exit0), "TellQuit", control.ReasonShutdown,
			"the guest has no ACPI and so no power button; QEMU was ended"},
		{"has less time than was said", after(start, sigterm, GraceShortened{5, at(105)}, quits, exit0),
			"Press AskAgent TellQuit", control.ReasonGracePeriodOver,
			"the guest did not power off within 5 seconds; QEMU was ended"},
		{"QEMU does not react", after(start, sigterm, Expired{GraceTimer}, Expired{KillTimer}, killed),
			"Press AskAgent TellQuit Kill", control.ReasonGracePeriodOver,
			"the guest did not power off within 30 seconds; QEMU was ended"},
		{"QEMU does not end after the guest", after(start, off, Expired{GraceTimer}, Expired{KillTimer}, killed),
			"TellQuit Kill", control.ReasonGuestShutdown, "the guest powered off"},
		{"QEMU does not end after a panic",
			after(start, Panic{}, PoweredDown{Guest: true, Reason: "guest-panic"},
				Expired{GraceTimer}, Expired{KillTimer}, killed),
			"TellQuit Kill", control.ReasonGuestPanic, "the guest's kernel panicked"},
		{"QEMU does not end after a panic, and is told to",
			after(start, Panic{}, PoweredDown{Guest: true, Reason: "guest-panic"}, sigterm, Expired{GraceTimer}, quits, exit0),
			"Press AskAgent TellQuit", control.ReasonGuestPanic, "the guest's kernel panicked"},
		{"QEMU does not end after a guest without ACPI",
			after(StartAsked{Order{NoACPI: true, Grace: 30}}, off, Expired{GraceTimer}, quits, exit0), "TellQuit",
			control.ReasonGuestShutdown, "the guest powered off"},
		{"QEMU is slow to end", after(start, sigterm, off, Expired{GraceTimer}, Expired{KillTimer}, killed),
			"Press AskAgent TellQuit Kill", control.ReasonShutdown, "the guest powered off after the ACPI power button"},
		{"QEMU loses its monitor and is slow to end", after(start, off, MonitorLost{errLost}, Expired{KillTimer}, killed),
			"Kill", control.ReasonGuestShutdown, "the guest powered off"},
		{"QEMU is killed", after(start, killed), "", control.ReasonQEMUExited, "QEMU was killed by signal 9 (killed)"},
		{"QEMU crashes", after(start, QEMUExited{Exit{Code: 3}}), "", control.ReasonQEMUExited, "QEMU exited with code 3"},
		{"QEMU leaves", after(start, exit0), "", control.ReasonQEMUExited, `QEMU exited with code 0 (shutdown reason "")`},
		{"QEMU is terminated", after(start, PoweredDown{Reason: "host-signal"}, exit0), "", control.ReasonQEMUExited,
			`QEMU exited with code 0 (shutdown reason "host-signal")`},
		{"panics", after(start, Panic{}, PoweredDown{Guest: true, Reason: "guest-panic"}, exit0), "",
			control.ReasonGuestPanic, "the guest's kernel panicked"},
		{"panics while a reboot is awaited", after(start, softly, Panic{Kept: true}, Stopped{}, exit0), "Reboot TellQuit",
			control.ReasonGuestPanic, "the guest's kernel panicked"},
		{"panics while a reboot is awaited, and QEMU does not react",
			after(start, softly, Panic{Kept: true}, Stopped{}, Expired{KillTimer}, killed), "Reboot TellQuit Kill",
			control.ReasonGuestPanic, "the guest's kernel panicked"},
		{"panics while it shuts down", after(start, sigterm, Panic{}, Stopped{}, Expired{GraceTimer}, quits, exit0),
			"Press AskAgent TellQuit", control.ReasonGracePeriodOver,
			"the guest did not power off within 30 seconds; QEMU was ended"},
		{"the monitor is lost", after(start, MonitorLost{errLost}, Expired{KillTimer}, killed), "Kill", control.ReasonQMPLost,
			"QEMU could not be driven any more, and was killed: lost"},
		{"the monitor is lost, and then it is asked to end",
			after(start, MonitorLost{errLost}, sigterm, Expired{KillTimer}, killed), "Press AskAgent Kill",
			control.ReasonQMPLost, "QEMU could not be driven any more, and was killed: lost"},
		{"the monitor is lost in the start", []Event{start, Prepared{}, MonitorLost{errLost}, Expired{KillTimer}, killed},
			"Kill", control.ReasonStartFailed, "QEMU could not be driven, and was killed before the guest ran: lost"},
		{"nobody answers the handshake",
			[]Event{start, Prepared{}, HandshakeFailed{errors.New("wait for QMP greeting: timeout")}, killed}, "Kill",
			control.ReasonStartFailed, "wait for QMP greeting: timeout"},
		{"QEMU fails", []Event{start, Prepared{}, QEMUExited{Exit{Code: 3}}}, "", control.ReasonStartFailed,
			"QEMU exited with code 3 before the guest ran"},
		{"QEMU cannot be started", []Event{start, Prepared{}, ExecFailed{errWhy}}, "", control.ReasonStartFailed, "why"},
		{"disks cannot be made", []Event{start, Prepared{errWhy}}, "", control.ReasonStartFailed, "why"},
		{"fits no machine", []Event{Rejected{"spec.x: no"}}, "", control.ReasonStartFailed, "spec.x: no"},
		{"asked to end while waiting", []Event{sigterm}, "", control.ReasonNeverStarted,
			"asked to end before virt-handler started the VM"},
		{"asked to end while preparing", []Event{start, sigterm, Prepared{errWhy}}, "Abort", control.ReasonNeverStarted,
			"asked to end before QEMU was started"},
		{"asked to end while a disk hangs", []Event{start, sigterm, Expired{KillTimer}}, "Abort", control.ReasonNeverStarted,
			"asked to end before QEMU was started"},
		{"asked to end before the greeting", []Event{start, Prepared{}, sigterm, HandshakeFailed{errWhy}, killed},
			"Abort Kill", control.ReasonNeverStarted, "asked to end while QEMU was starting"},
		{"asked to end while it begins to run",
			[]Event{start, Prepared{}, sigterm, Resumed{at(1)}, Handshaken{at(1)}, killed}, "Abort Kill",
			control.ReasonNeverStarted, "asked to end while QEMU was starting"},
		{"canceled while waiting", []Event{Canceled{}}, "", control.ReasonNeverStarted, "the launcher is being ended"},
		{"canceled while preparing", []Event{start, Canceled{}}, "", control.ReasonNeverStarted,
			"the launcher is being ended"},
		{"canceled while starting", []Event{start, Prepared{}, Canceled{}, killed}, "Kill", control.ReasonStartFailed,
			"QEMU was killed by signal 9 (killed) before the guest ran"},
		{"canceled", after(start, Canceled{}, killed), "Kill", control.ReasonQEMUExited,
			"QEMU was killed by signal 9 (killed)"},
		{"ended paused from the start", []Event{paused, Prepared{}, Handshaken{at(1)}, sigterm, killed}, "Kill",
			control.ReasonNeverStarted, "asked to end before the guest ran"},
		{"QEMU is killed while paused from the start", []Event{paused, Prepared{}, Handshaken{at(1)}, killed}, "",
			control.ReasonStartFailed, "QEMU was killed by signal 9 (killed) before the guest ran"},
		{"paused from the start, and unpaused",
			[]Event{paused, Prepared{}, Handshaken{at(1)}, OperationAsked{Operation: Unpause}, Resumed{at(9)}, off, exit0},
			"Operate", control.ReasonGuestShutdown, "the guest powered off"},
		{"is started again", after(start, softly, off, Stopped{}, Resumed{at(9)}, off, exit0), "Reboot Restart",
			control.ReasonGuestShutdown, "the guest powered off"},
		{"panicked before it was started again", after(start, softly, Panic{}, off, Stopped{}, Resumed{at(9)}, off, exit0),
			"Reboot Restart", control.ReasonGuestShutdown, "the guest powered off"},
		{"cannot be started again", after(start, softly, off, Stopped{}, RestartFailed{errWhy}, exit0),
			"Reboot Restart TellQuit", control.ReasonQMPLost,
			"the guest powered off in order to start anew, and QEMU could not be made to: why"},
		{"cannot be started again while it ends", after(start, softly, off, sigterm, RestartFailed{errWhy}, exit0),
			"Reboot Restart Press AskAgent TellQuit", control.ReasonQMPLost,
			"the guest powered off in order to start anew, and QEMU could not be made to: why"},
		{"is off before QEMU is to keep it", after(start, softly, off, exit0), "Reboot Restart", control.ReasonGuestShutdown,
			"the guest powered off"},
		{"is off when its reboot is given up", after(start, softly, sigterm, off, Stopped{}, quits, exit0),
			"Reboot ForgetReboot Press AskAgent TellQuit", control.ReasonShutdown,
			"the guest powered off after the ACPI power button"},
		{"is off after its reboot was given up", after(start, softly, Expired{RebootTimer}, off, exit0),
			"Reboot ForgetReboot", control.ReasonGuestShutdown, "the guest powered off"},
		{"cannot be soft-rebooted", after(start, softly, OperationFailed{SoftReboot}, off, exit0), "Reboot ForgetReboot",
			control.ReasonGuestShutdown, "the guest powered off"},
		{"storage fails while it shuts down",
			after(start, sigterm, full, Stopped{}, Expired{RetryTimer}, Resumed{at(106)}, Expired{SettleTimer}, off, exit0),
			"Press AskAgent Continue", control.ReasonShutdown, "the guest powered off after the ACPI power button"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, actions := live(t, tt.heard)
			if got := s.Termination(); s.Phase != Ended || got.Reason != tt.reason || got.Message != tt.message {
				t.Errorf("phase %s, ended with %+v", phaseNames[s.Phase], got)
			}
			var did []string
			for _, a := range list(actions) {
				name, _, _ := strings.Cut(a, " ")
				if slices.Contains([]string{"Abort", "Press", "AskAgent", "TellQuit", "Kill", "Operate", "Reboot", "ForgetReboot",
					"Restart", "Continue"}, name) {
					did = append(did, name)
				}
			}
			if got := strings.Join(did, " "); got != tt.did {
				t.Errorf("did %q, want %q", got, tt.did)
			}
			if n := len(slices.DeleteFunc(actions, func(a Action) bool { return a != End })); n != 1 {
				t.Errorf("ended %d times", n)
			}
		})
	}
	if s, _ := live(t, ran); !s.Ran.Equal(at(1)) {
		t.Errorf("ran at %v", s.Ran)
	}
}

// live goes through a life whose every event can come when it does.
func live(t *testing.T, heard []Event) (s State, actions []Action) {
	t.Helper()
	for i, e := range heard {
		if why := impossible(s, e); why != "" {
			t.Fatalf("event %d, %T%+v, cannot come: %s", i, e, e, why)
		}
		var do []Action
		s, do = Step(s, e)
		actions = append(actions, do...)
	}
	return s, actions
}

// TestExitOfQEMU: a termination has QEMU's own part.
func TestExitOfQEMU(t *testing.T) {
	crashed, _ := live(t, []Event{start, Prepared{}, Handshaken{at(1)}, QEMUExited{Exit{Signal: syscall.SIGSEGV}}})
	if got := crashed.Termination(); got.Signal != syscall.SIGSEGV.String() || got.ExitCode != 0 || got.Succeeded() {
		t.Errorf("crashed: %+v", got)
	}
	failed, _ := live(t, []Event{start, Prepared{}, QEMUExited{Exit{Code: 1}}})
	if got := failed.Termination(); got.ExitCode != 1 || got.Signal != "" {
		t.Errorf("failed: %+v", got)
	}
	// That it was killed for not answering is no news.
	deaf, _ := live(t, []Event{start, Prepared{}, HandshakeFailed{errWhy}, killed})
	if got := deaf.Termination(); got.ExitCode != 0 || got.Signal != "" {
		t.Errorf("deaf: %+v", got)
	}
}

// TestFailedTargetSaysWhyInItsReport: a launcher whose guest does not come says why in its last report. Any other
// launcher says it as it ends.
func TestFailedTargetSaysWhyInItsReport(t *testing.T) {
	incoming := StartAsked{Order{Incoming: true, Grace: 30}}
	for name, tt := range map[string]struct {
		heard []Event
		want  string
	}{
		"disks cannot be made": {[]Event{incoming, Prepared{errWhy}}, "StartFailed: why"},
		"QEMU is killed": {[]Event{incoming, Prepared{}, Handshaken{at(1)}, killed},
			"StartFailed: QEMU was killed by signal 9 (killed) before the guest ran"},
		"no guest is to come": {[]Event{start, Prepared{errWhy}}, ""},
		"the guest has come":  {[]Event{incoming, Prepared{}, Handshaken{at(1)}, ReceptionEnded{}, killed}, ""},
		"the guest has come and ran": {
			[]Event{incoming, Prepared{}, Handshaken{at(1)}, ReceptionEnded{}, Resumed{at(2)}, killed}, ""},
	} {
		if s, _ := live(t, tt.heard); s.Phase != Ended || s.Report().Failure != tt.want {
			t.Errorf("%s: phase %d, %q, want %q", name, s.Phase, s.Report().Failure, tt.want)
		}
	}
}

// TestKeptLauncherOutlivesAFailure: a launcher that is to be kept lives on after a failure. It says how the VM
// failed, and says it again when it is asked to end. It lives on after nothing else.
func TestKeptLauncherOutlivesAFailure(t *testing.T) {
	keep := StartAsked{Order{Keep: true, Grace: 30}}
	for name, end := range map[string]Event{"signal": sigterm, "cancel": Canceled{}} {
		s, actions := live(t, []Event{keep, Prepared{}, Handshaken{at(1)}, killed})
		if want := "QEMUExited: QEMU was killed by signal 9 (killed)"; s.Phase != Kept || s.Report().Failure != want ||
			s.Shown() != control.StateExited || slices.Contains(actions, Action(End)) {
			t.Errorf("kept: %+v, %v", s.Report(), actions)
		}
		before := s.Termination()
		if s, actions = Step(s, end); s.Phase != Ended || !slices.Equal(actions, []Action{End}) || s.Termination() != before {
			t.Errorf("%s: %+v, %v", name, s, actions)
		}
	}
	for name, heard := range map[string][]Event{
		"powered off":           {keep, Prepared{}, Handshaken{at(1)}, off, exit0},
		"asked to end":          {keep, Prepared{}, Handshaken{at(1)}, sigterm, killed},
		"asked to end early":    {keep, sigterm, Prepared{}},
		"fits no machine":       {Rejected{"no"}},
		"canceled while it ran": {keep, Prepared{}, Handshaken{at(1)}, Canceled{}, killed},
	} {
		if s, _ := live(t, heard); s.Phase != Ended {
			t.Errorf("%s: %s", name, phaseNames[s.Phase])
		}
	}
}

// TestStateFollowsTheGuestsPauses: the state follows the guest's CPUs, and says why they stand still.
func TestStateFollowsTheGuestsPauses(t *testing.T) {
	var s State
	hear := func(heard ...Event) control.StateReport {
		t.Helper()
		for _, e := range heard {
			s, _ = Step(s, e)
		}
		return s.Report()
	}
	want := func(r control.StateReport, state control.State, pause control.Pause) {
		t.Helper()
		if r.State != state || (r.Pause == nil) != (pause == control.Pause{}) || r.Pause != nil && *r.Pause != pause {
			t.Errorf("%+v, paused for %+v; want %s, %+v", r, r.Pause, state, pause)
		}
	}
	user, none := control.Pause{Status: control.PausedByUser}, control.Pause{}
	storage := control.Pause{Status: control.PausedIOError, Disk: "root", Operation: "write", Error: "full", NoSpace: true}
	want(hear(start, Prepared{}, Handshaken{at(1)}), control.StateRunning, none)
	want(hear(Stopped{}), control.StatePaused, user)
	want(hear(ReasonTold{Pause: 7, Status: "watchdog"}), control.StatePaused, user)
	want(hear(ReasonTold{Pause: s.Pauses, Status: "running", Running: true}), control.StatePaused, user)
	want(hear(ReasonTold{Pause: s.Pauses, Status: "watchdog"}), control.StatePaused, control.Pause{Status: "watchdog"})
	over := s.Pauses
	want(hear(Resumed{at(2)}), control.StateRunning, none)
	want(hear(ReasonTold{Pause: over, Status: "paused"}), control.StateRunning, none)
	want(hear(full, Stopped{}), control.StatePaused, storage)
	want(hear(ReasonTold{Pause: s.Pauses, Status: "io-error"}), control.StatePaused, storage)
	// An attempt in vain is not seen from outside.
	want(hear(Expired{RetryTimer}, Resumed{at(7)}), control.StatePaused, storage)
	want(hear(full, Stopped{}), control.StatePaused, storage)
	want(hear(Expired{RetryTimer}, Resumed{at(17)}), control.StatePaused, storage)
	want(hear(Expired{SettleTimer}), control.StateRunning, none)
	// Nor is what a guest that is to shut down does taken for running.
	want(hear(sigterm, full, Stopped{}), control.StateShuttingDown, storage)
	want(hear(Resumed{at(101)}), control.StateShuttingDown, none)
	if !s.Ran.Equal(at(1)) {
		t.Errorf("ran at %v", s.Ran)
	}
}

// TestRetryWaits: a guest waits longer for each retry, up to a bound. After a retry that went well, the waits begin
// anew.
func TestRetryWaits(t *testing.T) {
	s := reach([]Event{start, Prepared{}, Handshaken{at(1)}})
	for range 2 {
		for i, want := range []time.Duration{5, 10, 20, 40, 60, 60} {
			want *= time.Second
			var actions []Action
			s, _ = Step(s, full)
			s, actions = Step(s, Stopped{})
			if !slices.Contains(actions, Action(StartTimer{RetryTimer, want})) {
				t.Errorf("attempt %d: %v, want one after %v", i, list(actions), want)
			}
			s, _ = Step(s, Expired{RetryTimer})
			s, _ = Step(s, Resumed{at(3)})
		}
		s, _ = Step(s, Expired{SettleTimer})
	}
}

// TestGraceFromPowerButton: a shorter grace period counts from the power button
// on, and so never lengthens what is left of it.
func TestGraceFromPowerButton(t *testing.T) {
	s := reach([]Event{start, Prepared{}, Handshaken{at(1)}, sigterm})
	for _, tt := range []struct {
		shortened GraceShortened
		want      []Action
	}{
		{GraceShortened{20, at(105)}, []Action{StartTimer{GraceTimer, 15 * time.Second}}},
		{GraceShortened{30, at(105)}, nil},
		{GraceShortened{-1, at(105)}, nil},
		{GraceShortened{5, at(105)},
			[]Action{StopTimer{ButtonTimer}, StopTimer{GraceTimer}, TellQuit, StartTimer{KillTimer, QuitTime}}},
	} {
		if _, actions := Step(s, tt.shortened); !slices.Equal(actions, tt.want) {
			t.Errorf("%+v: %v, want %v", tt.shortened, actions, tt.want)
		}
	}
	// Before the power button it is only noted.
	early := reach([]Event{start, GraceShortened{5, at(0)}, Prepared{}, Handshaken{at(1)}})
	if _, actions := Step(early, sigterm); !slices.Contains(actions, Action(StartTimer{GraceTimer, 5 * time.Second})) {
		t.Errorf("%v", actions)
	}
	if got := seconds(1 << 60); got <= 0 {
		t.Errorf("a grace period of ages is %v", got)
	}
}

// TestSilentQEMUIsAskedOnce: QEMU is asked once, however often somebody wants to know, and is
// said to be silent until it answers.
func TestSilentQEMUIsAskedOnce(t *testing.T) {
	s := reach([]Event{start, Prepared{}, Handshaken{at(1)}})
	s, actions := Step(s, Probed{})
	if !slices.Equal(actions, []Action{Probe, StartTimer{PatienceTimer, PatienceTime}}) {
		t.Errorf("asked: %v", actions)
	}
	if _, again := Step(s, Probed{}); len(again) > 0 {
		t.Errorf("asked again: %v", again)
	}
	s, actions = Step(s, Expired{PatienceTimer})
	if !s.Report().QEMUSilent || !slices.Equal(actions, []Action{Report}) {
		t.Errorf("silent: %+v, %v", s, actions)
	}
	if _, again := Step(s, Probed{}); len(again) > 0 {
		t.Errorf("asked while silent: %v", again)
	}
	if _, actions := Step(s, sigterm); slices.Contains(actions, Action(Press)) {
		t.Error("the power button was pressed in vain")
	}
	s, actions = Step(s, ProbeAnswered{})
	if s.Report().QEMUSilent || !slices.Equal(actions, []Action{Report}) {
		t.Errorf("answered: %+v, %v", s, actions)
	}
}

// TestReceivedGuestMayHaveRun: once QEMU was told to let a received guest run, only QEMU's refusal says that the
// guest did not run. virt-controller has a guest run on its source again whose launcher says that the guest never
// ran.
func TestReceivedGuestMayHaveRun(t *testing.T) {
	received := []Event{StartAsked{Order{Incoming: true, Grace: 30}}, Prepared{}, Handshaken{at(1)}, ReceptionEnded{}}
	coming := []Event{StartAsked{Order{Incoming: true, Grace: 30}}, Prepared{}, Handshaken{at(1)}, AllButMemory{}}
	told, refused := RunAsked{At: at(2)}, RunFailed{Err: errWhy}
	for name, tt := range map[string]struct {
		heard []Event
		ran   bool
	}{
		"QEMU dies before it is told":                   {slices.Concat(received, []Event{killed}), false},
		"QEMU dies before it answers":                   {slices.Concat(received, []Event{told, killed}), true},
		"QEMU ends well before it answers":              {slices.Concat(received, []Event{told, exit0}), true},
		"QEMU ends well before it answers and is whole": {slices.Concat(coming, []Event{told, exit0}), true},
		"QEMU dies once it has answered": {slices.Concat(received,
			[]Event{told, RunAnswered{}, killed}), true},
		"QEMU's memory comes before it answers": {slices.Concat(coming,
			[]Event{told, ReceptionEnded{}, killed}), true},
		"the monitor is lost": {slices.Concat(received,
			[]Event{told, MonitorLost{errLost}, Expired{KillTimer}, killed}), true},
		"asked to end before it is told": {slices.Concat(received, []Event{sigterm, killed}), false},
		"asked to end before it answers": {slices.Concat(received, []Event{told, sigterm, killed}), true},
		"canceled before it answers":     {slices.Concat(received, []Event{told, Canceled{}, killed}), true},
		"QEMU refuses":                   {slices.Concat(received, []Event{told, refused, killed}), false},
		"QEMU refuses before the memory is there": {slices.Concat(coming,
			[]Event{told, refused, ReceptionEnded{}, sigterm, killed}), false},
		"QEMU refuses late": {slices.Concat(received,
			[]Event{told, RunFailed{errWhy, true}, sigterm, killed}), false},
		"QEMU refuses late, and is told again": {slices.Concat(received,
			[]Event{told, RunFailed{errWhy, true}, told, killed}), true},
	} {
		s, _ := live(t, tt.heard)
		reason := s.Termination().Reason
		if never := reason == control.ReasonStartFailed || reason == control.ReasonNeverStarted; s.Phase != Ended ||
			never == tt.ran {
			t.Errorf("%s: %s, phase %d", name, reason, s.Phase)
		}
	}
	s := reach(slices.Concat(received, []Event{told}))
	if _, did := Step(s, told); slices.Contains(did, Action(Run)) {
		t.Error("QEMU is told twice before it has answered")
	}
}
