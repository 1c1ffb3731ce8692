package life

import (
	"slices"
	"testing"
)

// TestEndOfTPMIsNewsOnlyBesideQEMU: the end of a TPM's emulator is news only if QEMU goes on without it. The guest
// goes on too.
func TestEndOfTPMIsNewsOnlyBesideQEMU(t *testing.T) {
	running := []Event{start, Prepared{}, Handshaken{at(1)}}
	s, actions := Step(reach(running), tpmKilled)
	if !slices.Equal(actions, []Action{StartTimer{TPMTimer, TPMTime}}) || s.Report().TPMLost != "" {
		t.Errorf("ended: %v, %+v", actions, s.Report())
	}
	if _, actions := Step(s, QEMUExited{}); !slices.Equal(actions, []Action{StopTimer{TPMTimer}, Report, End}) {
		t.Errorf("QEMU ended too: %v", actions)
	}
	s, actions = Step(s, Expired{TPMTimer})
	if want := "the emulator of the TPM was killed by signal 9 (killed): oh"; !slices.Equal(actions, []Action{Report}) ||
		s.Report().TPMLost != want || s.Phase != Running {
		t.Errorf("QEMU goes on: %v, %+v", actions, s.Report())
	}
	if _, actions := Step(s, MigrateAsked{}); !slices.Equal(actions,
		[]Action{Answer{"cannot migrate: the guest's TPM has failed, so that there is no state of it that could move: the emulator of the TPM was killed by signal 9 (killed): oh"}}) {
		t.Errorf("asked to migrate: %v", actions)
	}
}

// TestEndOfTheTPMIsTold: the report of a guest that does not come says how the TPM's emulator ended, unless the cause
// does. Of a guest that came, the end of its TPM is in the report by itself, and is no reason of what happens later.
func TestEndOfTheTPMIsTold(t *testing.T) {
	receiving := []Event{StartAsked{Order{Incoming: true, Grace: 30}}, Prepared{}, Handshaken{at(1)}}
	then := func(before []Event, more ...Event) []Event { return slices.Concat(before, more) }
	for name, c := range map[string]struct {
		heard []Event
		tell  bool
	}{
		"QEMU ends before the guest came": {then(receiving, tpmKilled, QEMUExited{Exit{Code: 1}}), true},
		"the guest is refused for it":     {then(receiving, ReceptionEnded{}, tpmKilled, RunAsked{At: at(2)}), false},
		"the guest came, and QEMU ends later": {then(receiving, ReceptionEnded{}, RunAsked{At: at(2)}, tpmKilled,
			QEMUExited{Exit{Code: 1}}), false},
		"a guest that begins here ends at once": {[]Event{start, Prepared{}, tpmKilled, QEMUExited{Exit{Code: 1}}}, false},
	} {
		if got := reach(c.heard).MayMissTPM(); got != c.tell {
			t.Errorf("%s: tell is %v", name, got)
		}
	}
}

// TestGuestDoesNotBeginWithAFailedTPM: a guest whose TPM has failed before the guest ran does not begin. A guest that
// was received is refused once virt-handler asks for it, unless its source has let go of it, or QEMU was told to let
// it run. What QEMU's own end says comes first.
func TestGuestDoesNotBeginWithAFailedTPM(t *testing.T) {
	const why = "the emulator of the TPM was killed by signal 9 (killed): oh"
	starting := []Event{start, Prepared{}}
	receiving := []Event{StartAsked{Order{Incoming: true, Grace: 30}}, Prepared{}, Handshaken{at(1)}}
	then := func(before []Event, more ...Event) []Event { return slices.Concat(before, more) }
	failed, refused := Cause{NoTPM, why}, Cause{NoTPM, "let the received guest run: " + why}
	run, paused, lost := RunAsked{At: at(2)}, RunAsked{Paused: true, At: at(2)}, Expired{TPMTimer}
	for name, c := range map[string]struct {
		heard []Event
		phase Phase
		cause Cause
	}{
		"starting":                  {then(starting, tpmKilled, lost), Killing, failed},
		"running by then":           {then(starting, tpmKilled, Handshaken{at(1)}, lost), Killing, failed},
		"the guest had run already": {then(starting, Handshaken{at(1)}, tpmKilled, lost), Running, Cause{}},
		"QEMU has ended by itself":  {then(starting, tpmKilled, QEMUExited{Exit{Code: 1}}), Ended, Cause{}},
		"receiving":                 {then(receiving, tpmKilled, lost), Receiving, Cause{}},
		"received":                  {then(receiving, tpmKilled, ReceptionEnded{}, lost), Received, Cause{}},
		"asked to run":              {then(receiving, ReceptionEnded{}, tpmKilled, run), Killing, refused},
		"asked to run later":        {then(receiving, ReceptionEnded{}, tpmKilled, lost, run), Killing, refused},
		"asked to stay paused":      {then(receiving, ReceptionEnded{}, tpmKilled, paused), Killing, refused},
		"may run":                   {then(receiving, ReceptionEnded{}, run, tpmKilled, lost), Received, Cause{}},
		"told to run before": {
			then(receiving, AllButMemory{}, tpmKilled, run, ReceptionEnded{}, run), Received, Cause{}},
		"memory is coming": {then(receiving, AllButMemory{}, tpmKilled, lost, paused), Paused, Cause{}},
	} {
		s := reach(c.heard[:len(c.heard)-1])
		s, actions := Step(s, c.heard[len(c.heard)-1])
		if s.Phase != c.phase || s.Cause != c.cause {
			t.Errorf("%s: phase %s, cause %+v", name, phaseNames[s.Phase], s.Cause)
		}
		if slices.Contains(actions, Action(RefuseRun{why})) != (c.cause == refused) ||
			slices.Contains(actions, Action(Answer{})) && c.cause == refused {
			t.Errorf("%s: %v", name, actions)
		}
	}
}

// TestTPMFailsBeforeTheGuestRuns: whether a TPM's end is early decides whether its guest may run. A guest that has run
// before, or may have, has used its TPM.
func TestTPMFailsBeforeTheGuestRuns(t *testing.T) {
	for state, early := range map[string]bool{
		"starting": true, "receiving": true, "received": true, "received, memory coming": true,
		"received, being let run": false, "received, let run": false, "paused from the start": false, "running": false,
		"shutting down": false,
	} {
		if _, after, did := stepped(t, state, "TPM ended"); after.TPM.Early != early ||
			!slices.Equal(did, []Action{StartTimer{TPMTimer, TPMTime}}) {
			t.Errorf("%s: early is %t, and then %v", state, after.TPM.Early, list(did))
		}
	}
}
