package life

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// TestRulesHoldInEveryState: whatever is decided, the rules hold for every state and every event.
func TestRulesHoldInEveryState(t *testing.T) {
	for _, from := range states() {
		before := reach(from.value)
		for _, e := range events() {
			after, did := Step(before, e.value)
			for _, why := range broken(before, e.value, after, did) {
				t.Errorf("%s, %s: %s: %q", from.name, e.name, why, follows(before, after, did))
			}
		}
	}
}

// broken returns which rules a step breaks.
func broken(before State, heard Event, after State, did []Action) (all []string) {
	say := func(broken bool, format string, args ...any) {
		if broken {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	why := impossible(before, heard)
	say(why != "" && (after != before || len(did) > 0), "it cannot come (%s), and does something", why)
	say(after.Phase < before.Phase && !(before.Phase == Paused && after.Phase == Running), "the stage goes back")
	_, ended := heard.(MigrationEnded)
	unasked := ended && !before.Leaving.decided() // QEMU asks for the switchover before it has sent everything
	say(shownOrder[after.Shown()] < shownOrder[before.Shown()] && !unasked,
		"it is said to be %s after %s", after.Shown(), before.Shown())
	say(after.HasEnded() && !after.Termination().Reason.Known(), "the end's reason is %q", after.Termination().Reason)
	for i, a := range did {
		say(slices.Contains(did[:i], a), "it does %v twice", a)
	}
	if got, want := answers(did), requests(heard); before.Phase != Ended {
		say(!slices.Equal(got, want), "it answers %v, and was asked %v", got, want)
	}
	for phase, enter := range entered {
		say((before.Phase != phase && after.Phase == phase) != slices.ContainsFunc(did, enter),
			"it does not enter %s with the action of that", phaseNames[phase])
	}
	// A launcher that was kept ends without a word: virt-handler knows that its VM has ended.
	differs := !reflect.DeepEqual(before.Report(), after.Report()) && before.Phase != Kept
	say(differs != slices.Contains(did, Action(Report)), "what virt-handler sees has changed: %t, and it reports: %t",
		differs, !differs)
	arrives := before.Phase == Received && (after.Phase == Running || after.Phase == Paused)
	say(arrives != slices.Contains(did, Action(Arrive)), "a guest arrives: %t, and its parts hear of that: %t",
		arrives, !arrives)
	_, asked := heard.(HoldAsked)
	waits := func(s State) bool { return s.Hold.How == Stopping && !s.Hold.Over }
	told := slices.ContainsFunc(did, func(a Action) bool { _, told := a.(AnswerHold); return told })
	due := asked && (waits(before) || !waits(after)) ||
		!asked && waits(before) && !waits(after) && !after.Hold.Over
	say(before.Phase != Ended && told != due, "a job is to be told whether the guest stands: %t, and is: %t", due, told)
	say(after.Hold.How != Free && (!after.driven() || after.Lost != ""), "a job holds a guest that QEMU cannot let go")
	for timer := range Timers {
		all = append(all, brokenTimer(timer, before, heard, after, did)...)
	}
	return all
}

// entered has the action with which a stage is entered.
var entered = map[Phase]func(Action) bool{
	Preparing: func(a Action) bool { return a == Prepare },
	Starting:  func(a Action) bool { return a == Exec },
	Quitting:  func(a Action) bool { return a == TellQuit },
	Killing:   func(a Action) bool { _, kill := a.(Kill); return kill },
	Kept:      func(a Action) bool { return a == Keep },
	Ended:     func(a Action) bool { return a == End },
}

// requests returns who waits for an answer to an event, if anybody does.
func requests(heard Event) []string {
	switch heard.(type) {
	case StartAsked, Rejected, OperationAsked, MigrateAsked, TakeBackAsked, ReleaseAsked, RunAsked:
		return []string{"by virt-handler"}
	case SwitchoverAsked:
		return []string{"by QEMU"}
	}
	return nil
}

// answers returns who is answered.
func answers(did []Action) (who []string) {
	for _, a := range did {
		switch a.(type) {
		case Answer, Operate, Reboot, RefuseRun:
			who = append(who, "by virt-handler")
		case AnswerSwitchover:
			who = append(who, "by QEMU")
		}
		if a == Send || a == Run {
			who = append(who, "by virt-handler")
		}
	}
	return who
}

// brokenTimer returns which rules of its own a timer breaks: the state decides whether it runs.
func brokenTimer(timer Timer, before State, heard Event, after State, did []Action) (all []string) {
	started := slices.ContainsFunc(did,
		func(a Action) bool { s, ok := a.(StartTimer); return ok && s.Timer == timer && s.After > 0 })
	stopped, expired := slices.Contains(did, Action(StopTimer{timer})), heard == Expired{timer}
	ran, runs := before.runs(timer), after.runs(timer)
	if runs && (!ran || expired) && !started {
		all = append(all, fmt.Sprintf("nobody has started the %s timer", timerNames[timer]))
	}
	if started && !runs {
		all = append(all, fmt.Sprintf("the %s timer is not to run, and is started", timerNames[timer]))
	}
	if want := ran && !runs && !expired; want != stopped {
		all = append(all, fmt.Sprintf("the %s timer is to be stopped: %t, and is: %t", timerNames[timer], want, stopped))
	}
	return all
}

// shownOrder is the order in which states are reported; running, paused and moved take turns. A received guest whose
// QEMU is being killed is shown as receiving again, so that nobody lets it run.
var shownOrder = map[control.State]int{
	control.StateWaiting: 0, control.StatePreparing: 1, control.StateReceiving: 2, control.StateReceived: 2,
	control.StateRunning: 4, control.StatePaused: 4, control.StateMoved: 4,
	control.StateShuttingDown: 5, control.StateExited: 6}
