package life

import (
	"fmt"
	"strings"
)

// describe returns a state in words, without the fields that are zero. It always names the phase.
func describe(s State) string {
	d := difference(State{}, s)
	if s.Phase == Waiting {
		d = append([]string{"Waiting"}, d...)
	}
	return strings.Join(d, ", ")
}

var (
	phaseNames = []string{"Waiting", "Preparing", "Aborting", "Starting", "Receiving", "Received", "Running", "Paused",
		"ShuttingDown", "Quitting", "Killing", "Kept", "Ended"}
	powerNames   = []string{"On", "RebootAwaited", "Restarting", "Off"}
	trialNames   = []string{"NoTrial", "Scheduled", "Continued", "Settling", "Unpausing"}
	silenceNames = []string{"Unasked", "Asked", "Silent"}
	wishNames    = []string{"GoOn", "Shutdown", "Cancel"}
	causeNames   = []string{"NoCause", "NotStarted", "NotStartable", "NoTPM", "Quit", "Crashed", "NotAgain", "Undrivable",
		"Moved", "Scattered"}
	leavingNames = []string{"Staying", "Copying", "Halted", "Switching", "Taking", "Trailing", "Torn", "Left"}
	memoryNames  = []string{"Here", "Coming"}
	lettingNames = []string{"NotLet", "BeingLet", "Let"}
	holdingNames = []string{"Free", "Stopping", "Held", "LettingGo"}
)

// difference returns what has changed from one state to the other, field by field.
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
	add(a.Hold != b.Hold, "%s", ofHold(b.Hold))
	add(a.PostCopy != b.PostCopy, "post-copy %t", b.PostCopy)
	add(a.Memory != b.Memory, "memory %s", memoryNames[b.Memory])
	add(a.Letting != b.Letting, "%s", lettingNames[b.Letting])
	add(a.Order.NoACPI != b.Order.NoACPI, "no ACPI")
	add(a.Came != b.Came, "came")
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

// ofHold returns a hold in words.
func ofHold(h Hold) string {
	text := holdingNames[h.How]
	if h.Job != 0 {
		text += fmt.Sprintf(" for job %d", h.Job)
	}
	if h.Over {
		text += ", which is over"
	}
	return text
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
		case AnswerSwitchover:
			out = append(out, strings.TrimSpace("AnswerSwitchover "+a.Refusal))
		case Kill:
			out = append(out, fmt.Sprintf("Kill (%s)", a.Why))
		case RefuseRun:
			out = append(out, fmt.Sprintf("RefuseRun (%s)", a.Why))
		case AnswerHold:
			out = append(out, strings.TrimSpace(fmt.Sprintf("AnswerHold %d %s", a.Job, a.Refusal)))
		case Operate:
			out = append(out, fmt.Sprintf("Operate %s", a.Operation))
		default:
			out = append(out, strings.TrimPrefix(fmt.Sprintf("%T ", a), "life.")+strings.Trim(fmt.Sprintf("%+v", a), "{}"))
		}
	}
	return out
}

// follows returns what follows from an event: what has changed in the state, and what is done.
func follows(before, after State, did []Action) []string {
	clause := func(sign string, parts []string) []string {
		for i := range len(parts) - 1 {
			parts[i] += ";"
		}
		if len(parts) > 0 {
			parts[0] = sign + " " + parts[0]
		}
		return parts
	}
	return append(clause("→", difference(before, after)), clause("⇒", list(did))...)
}
