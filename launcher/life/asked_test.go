package life

import (
	"slices"
	"testing"
)

// TestRefusalsSayWhy: whoever asks for what cannot be done is told why, and nothing else happens. Of several reasons
// the first counts.
func TestRefusalsSayWhy(t *testing.T) {
	noTPM := "the guest's TPM has failed, so that there is no state of it that could move: " + tpmKilled.String()
	for _, c := range []struct{ state, event, why string }{
		{"preparing", "start asked", "cannot start: the VM is preparing"},
		{"preparing", "rejected", "cannot reject: the VM is preparing"},

		{"waiting", "pause asked", "cannot pause: the VM is waiting"},
		{"paused", "pause asked", "cannot pause: the VM is paused already"},
		{"paused, settling", "pause asked", "cannot pause: the VM is paused already"},
		{"shutting down", "pause asked", "cannot pause: the VM is shutting-down"},
		{"copying, shutting down", "pause asked", "cannot pause: the VM is shutting-down"},
		{"received, memory coming", "pause asked", "cannot pause: the VM is received"},
		{"running, off", "pause asked", "cannot pause: the guest has powered off"},
		{"copying", "pause asked", "cannot pause: the guest is being migrated"},
		{"running, memory coming", "pause asked", "cannot pause: the guest is being migrated"},
		{"running", "unpause asked", "cannot unpause: the VM is not paused"},
		{"running, restarting", "unpause asked", "cannot unpause: the guest has powered off and is being started again"},
		{"copying", "reset asked", "cannot reset: the guest is being migrated"},
		{"paused", "soft reboot asked", "cannot soft-reboot: the VM is paused"},
		{"running", "soft reboot while frozen asked", "cannot soft-reboot: the guest's file systems are frozen"},
		{"paused", "soft reboot while frozen asked", "cannot soft-reboot: the guest's file systems are frozen"},
		{"running, no ACPI", "soft reboot asked",
			"cannot soft-reboot: neither is the guest agent connected nor has the guest ACPI"},

		{"shutting down", "migrate asked", "cannot migrate: the VM is shutting-down"},
		{"copying, shutting down", "migrate asked", "cannot migrate: the VM is shutting-down"},
		{"paused from the start", "migrate asked", "cannot migrate: the VM is paused"},
		{"copying", "migrate asked", "cannot migrate: the guest is being migrated already"},
		{"switching, monitor lost", "migrate asked", "cannot migrate: the guest is being migrated already"},
		{"running, monitor lost", "migrate asked", "cannot migrate: QEMU cannot be driven any more"},
		{"running, memory coming", "migrate asked", "cannot migrate: the guest's memory is still coming"},
		{"running, off", "migrate asked", "cannot migrate: the guest reboots or has powered off"},
		{"running, reboot awaited", "migrate asked", "cannot migrate: the guest reboots or has powered off"},
		{"running, panicked", "migrate asked", "cannot migrate: the guest reboots or has powered off"},
		{"running, I/O failed", "migrate asked", "cannot migrate: a disk of the guest fails"},
		{"paused, settling", "migrate asked", "cannot migrate: a disk of the guest fails"},
		{"running, TPM ended", "migrate asked", "cannot migrate: " + noTPM},
		{"running, TPM lost", "migrate asked while QEMU is busy", "cannot migrate: " + noTPM},
		{"running", "migrate asked while QEMU is busy", "cannot migrate: QEMU is still changing something for the guest"},

		{"held", "pause asked", "cannot pause: job 3 holds the guest for a moment"},
		{"held, paused", "unpause asked", "cannot unpause: job 3 holds the guest for a moment"},
		{"held", "migrate asked", "cannot migrate: job 3 holds the guest for a moment"},
		{"held", "hold asked while QEMU is busy", "job 3 holds the guest for a moment"},
		{"running", "hold asked while QEMU is busy", "QEMU is still changing something for the guest"},
		{"starting", "hold asked while QEMU is busy", "the VM is preparing"},
		{"paused from the start", "hold asked while QEMU is busy", "the VM is paused"},
		{"shutting down", "hold asked while QEMU is busy", "the VM is shutting-down"},
		{"copying", "hold asked while QEMU is busy", "the guest is being migrated already"},
		{"running, reboot awaited", "hold asked while QEMU is busy", "the guest reboots or has powered off"},
		{"paused, retry scheduled", "hold asked while QEMU is busy", "a disk of the guest fails"},
		{"running, monitor lost", "hold asked while QEMU is busy", "QEMU cannot be driven any more"},

		{"waiting", "take back asked", "cannot take the guest back: the VM is waiting"},
		{"copying", "take back asked", "cannot take the guest back: it is still being migrated"},
		{"halted", "take back asked", "cannot take the guest back: it is still being migrated"},
		{"quitting, released", "take back asked", "cannot take the guest back: the VM is moved"},
		{"running", "release asked", "cannot release the guest: the VM is running"},
		{"copying", "release asked", "cannot release the guest: the VM is running"},
		{"copying, to trail", "release asked", "cannot release the guest: the VM is running"},
		{"switching, to trail", "release asked", "cannot release the guest: its memory is still being sent"},
		{"trailing", "release asked", "cannot release the guest: its memory is still being sent"},
		{"running", "run asked", "cannot run a received guest: the VM is running"},
		{"received, being let run", "run asked", "cannot run the received guest yet: QEMU was told, and has not answered"},
		{"received, being let run", "paused run asked",
			"cannot run the received guest yet: QEMU was told, and has not answered"},

		{"quitting", "switchover asked", "the guest is not being migrated"},
		{"running", "switchover asked", "the guest is not being migrated"},
		{"copying, shutting down", "switchover asked", "the VM is asked to end"},
		{"copying, off", "switchover asked", "the guest has powered off"},
		{"copying, I/O failed", "switchover asked", "a disk of the guest fails"},
	} {
		before, after, did := stepped(t, c.state, c.event)
		want := Action(Answer{c.why})
		switch c.event {
		case "switchover asked":
			want = AnswerSwitchover{c.why}
		case "hold asked while QEMU is busy":
			want = AnswerHold{4, c.why}
		}
		if after != before || !slices.Equal(did, []Action{want}) {
			t.Errorf("%s, %s: %q, want %q", c.state, c.event, follows(before, after, did), list([]Action{want}))
		}
	}
}

// TestWhatIsSoAlreadyIsAnswered: whoever asks for what is so already is told that it is done.
func TestWhatIsSoAlreadyIsAnswered(t *testing.T) {
	for _, c := range []look{
		{"paused, on trial", "unpause asked"}, {"paused, settling", "unpause asked"},
		{"running", "take back asked"}, {"paused", "take back asked"}, {"shutting down", "take back asked"},
		{"taking back", "take back asked"},
		{"quitting, released", "release asked"},
		{"received, let run", "run asked"}, {"running, received", "run asked"}, {"paused, memory coming", "run asked"},
		{"shutting down, memory coming", "run asked"},
	} {
		before, after, did := stepped(t, c.state, c.events)
		if after != before || !slices.Equal(did, []Action{Answer{}}) {
			t.Errorf("%s, %s: %q", c.state, c.events, follows(before, after, did))
		}
	}
}

// TestWhatComesTooLateChangesNothing: an event may come that was of interest only before, or that another event has
// overtaken.
func TestWhatComesTooLateChangesNothing(t *testing.T) {
	for _, c := range []look{
		{"shutting down", "shutdown asked"}, {"killing, canceled", "shutdown asked"},
		{"trailing, to end later", "shutdown asked"},
		{"shutting down", "RESUME"}, {"shutting down, silent", "STOP"},
		{"running, monitor lost", "STOP"}, {"running, restarting", "STOP"}, {"paused, retry scheduled", "STOP"},
		{"left", "STOP"}, {"running, panicked", "RESUME"}, {"running, off", "SHUTDOWN by the host"},
		{"paused", "told that it runs"}, {"paused", "reason of another pause told"},
		{"killing, paused from the start", "reason told"}, {"shutting down, retry scheduled", "reason told"},
		{"paused, being unpaused", "reset failed"}, {"received, let run", "run failed"},
		{"kept", "grace shortened to the past"}, {"running", "grace lengthened"},
		{"running", "post-copy begun"}, {"running, monitor lost", "probed"}, {"running, silent", "probed"},
		{"held", "STOP"}, {"letting go", "STOP"}, {"held", "hold of another job over"}, {"letting go", "hold over"},
		{"stopping for a job", "hold of another job failed"}, {"running", "hold over"}, {"running", "let go failed"},
		{"held", "hold failed"}, {"held", "let go"}, {"stopping for a job that is over", "hold over"},
		{"running, TPM ended", "TPM ended"}, {"starting, monitor lost", "exec failed"},
	} {
		before, after, did := stepped(t, c.state, c.events)
		if after != before || len(did) > 0 {
			t.Errorf("%s, %s: %q", c.state, c.events, follows(before, after, did))
		}
	}
}
