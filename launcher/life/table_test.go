package life

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
)

func TestMain(m *testing.M) { golden.Main(m, "testdata/*") }

const table = "testdata/table.txt"

// topic is a part of the table, which a reader looks up.
type topic struct {
	title string
	looks []look
}

// look is one state of a topic, and the events of interest there. Both are names: of states and of events.
type look struct{ state, events string }

// topics are what stands in the table. For all states and events TestRulesHoldInEveryState and TestRandomWalk say what
// holds; what is refused, fulfilled already or too late has tests of its own.
var topics = []topic{
	{"Start", []look{
		{"waiting", "start asked, rejected, shutdown asked, canceled"},
		{"preparing", "prepared, preparation failed, shutdown asked"},
		{"aborting", "canceled"},
		{"starting", "handshaken, RESUME, handshake failed, exec failed, shutdown asked"},
		{"paused from the start", "unpause asked, reason told, shutdown asked"},
	}},
	{"Shutdown", []look{
		{"running", "shutdown asked, canceled"},
		{"running, no ACPI", "shutdown asked"},
		{"running, silent", "canceled"},
		{"paused, retry scheduled", "canceled"},
		{"shutting down",
			"button expired, SHUTDOWN by the guest, grace shortened, grace shortened to the past, grace expired"},
		{"shutting down, silent", "button expired"},
		{"quitting", "QEMU exited, kill expired, handshake failed, canceled"},
		{"kept", "shutdown asked"},
	}},
	{"How QEMU ends, and whether it answers", []look{
		{"running", "SHUTDOWN by the guest, GUEST_PANICKED, QEMU exited, QEMU killed, monitor lost, probed"},
		{"running, off", "STOP, QEMU exited"},
		{"paused", "SHUTDOWN by the guest"},
		{"running, panicked", "QEMU exited, QEMU killed"},
		{"running, to be kept", "QEMU killed"},
		{"running, monitor lost", "kill expired"},
		{"paused for storage, monitor lost", "kill expired"},
		{"running, probed", "patience expired, monitor lost, restart failed, canceled"},
		{"running, silent", "probe answered, monitor lost"},
	}},
	{"Pause and reboot", []look{
		{"running", "pause asked, STOP, soft reboot asked, soft reboot by agent asked"},
		{"running, no ACPI", "pause asked, soft reboot by agent asked"},
		{"running, reboot awaited",
			"SHUTDOWN by the guest, SHUTDOWN by the host, reboot expired, GUEST_PANICKED and kept, shutdown asked"},
		{"running, restarting", "RESUME, restart failed"},
		{"quitting, restarting", "restart failed"},
	}},
	{"A disk that fails", []look{
		{"running", "BLOCK_IO_ERROR"},
		{"running, I/O failed", "STOP"},
		{"paused, retry scheduled", "retry expired, unpause asked, reset asked"},
		{"paused, on trial", "RESUME, STOP, continue failed"},
		{"paused, settling", "settle expired, reset asked"},
		{"paused, being unpaused", "RESUME, unpause failed"},
		{"copying, I/O failed", "STOP"},
		{"copying, stopped for storage", "retry expired"},
	}},
	{"A guest that leaves", []look{
		{"running", "migrate asked"},
		{"copying", "STOP, switchover asked, migration failed, shutdown asked"},
		{"copying, off", "STOP"},
		{"halted", "RESUME, post-copy begun, shutdown asked"},
		{"switching", "migrated, migration failed, RESUME, take back asked, release asked, shutdown asked"},
		{"taking back", "migrated, migration failed, RESUME, memory torn"},
		{"left", "take back asked, release asked, RESUME"},
		{"left, paused", "take back asked, migration failed"},
		{"quitting, released", "QEMU killed"},
	}},
	{"A guest that leaves before its memory", []look{
		{"switching", "memory trails"},
		{"switching, to trail, to end later", "migrated, migration failed, memory torn, RESUME, take back asked"},
		{"trailing",
			"migrated, migration failed, RESUME, SHUTDOWN by the guest, take back asked, shutdown asked, QEMU killed"},
		{"trailing, paused", "RESUME"},
		{"trailing, to end later", "migrated, migration failed, grace expired, grace shortened to the past"},
		{"torn", "take back asked, release asked, QEMU killed"},
	}},
	{"A guest that comes", []look{
		{"receiving", "received, reception failed, shutdown asked"},
		{"received", "run asked, paused run asked"},
		{"received, being let run", "RESUME, let run, run failed, run failed unheard, shutdown asked"},
	}},
	{"A guest that comes before its memory", []look{
		{"receiving", "received but the memory"},
		{"received, memory coming", "reception failed, shutdown asked"},
		{"received, memory coming, being let run", "run failed"},
		{"running, memory coming", "received, reception failed"},
		{"paused, memory coming", "reason told, QEMU exited, QEMU killed"},
		{"killing, scattered", "QEMU killed"},
	}},
	{"A guest that stands for a job", []look{
		{"running", "hold asked"},
		{"stopping for a job", "STOP, hold over, hold expired, hold failed, shutdown asked, canceled, monitor lost"},
		{"stopping for a job that is over", "STOP, hold failed, hold expired"},
		{"stopping for a job, I/O failed", "STOP"},
		{"held", "hold over, hold expired, RESUME, BLOCK_IO_ERROR, pause asked, migrate asked, shutdown asked, QEMU killed"},
		{"held, I/O failed", "hold over"},
		{"held, shutting down", "hold over, grace expired"},
		{"letting go", "RESUME, let go, let go failed"},
		{"letting go, not halted", "STOP, let go"},
		{"paused", "hold asked"},
		{"held, paused", "hold over, hold expired, unpause asked"},
	}},
	{"A TPM that fails", []look{
		{"running", "TPM ended"},
		{"running, TPM ended", "TPM expired"},
		{"starting, TPM ended", "TPM expired"},
		{"killing, TPM lost before", "QEMU killed"},
		{"received, TPM ended", "run asked"},
	}},
}

// TestTransitionTable: what follows from an event is what the table says, in the states and for the events that a
// reader looks up.
func TestTransitionTable(t *testing.T) {
	var b strings.Builder
	b.WriteString("A state of a guest's life, and below it: event → what changes in the state ⇒ what the launcher does.\n")
	var seen []look
	for _, topic := range topics {
		fmt.Fprintf(&b, "\n# %s\n", topic.title)
		for _, l := range topic.looks {
			state := strings.SplitAfter(describe(reach(find(t, states(), l.state))), ", ")
			fmt.Fprintf(&b, "\n%s", lines(l.state+":", state))
			for event := range strings.SplitSeq(l.events, ", ") {
				b.WriteString(lines("  "+event, follows(stepped(t, l.state, event))))
				if slices.Contains(seen, look{l.state, event}) {
					t.Errorf("%s, %s is in the table twice", l.state, event)
				}
				seen = append(seen, look{l.state, event})
			}
		}
	}
	golden.Compare(t, table, b.String())
}

// lines puts words behind a name, in lines of at most 120 characters.
func lines(name string, words []string) string {
	out, line := "", name
	for _, word := range words {
		word = strings.TrimSpace(word)
		if utf8.RuneCountInString(line+" "+word) > 120 {
			out, line = out+line+"\n", "     "
		}
		line += " " + word
	}
	return out + line + "\n"
}
