package launcher

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// handedOut attaches to the console over the control connection.
func handedOut(v *vm) *attached {
	v.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := v.conn.CallForStream(ctx, control.CommandConsole, nil)
	v.must(err)
	return attachedTo(v, conn)
}

// TestPauseUnpauseAndConsole: a paused guest stands still, and goes on. Its console is handed out, and taken over.
func TestPauseUnpauseAndConsole(t *testing.T) {
	t.Parallel()
	v := launch(t)
	if _, err := v.conn.CallForStream(context.Background(), control.CommandConsole, nil); err == nil {
		t.Error("a console before there is a guest")
	}
	if err := v.call(control.CommandPause, nil, nil); err == nil || !strings.Contains(err.Error(), "the VM is waiting") {
		t.Errorf("paused before it was started: %v", err)
	}
	v.boot()
	first := attach(v)
	first.say("first")
	first.Expect("first")
	second := handedOut(v)
	testkit.Receive(t, first.ended, "the end of the console that is taken over")
	second.say("second")
	second.Expect("second")

	v.must(v.call(control.CommandPause, nil, nil))
	if p := v.expectState(control.StatePaused).Pause; p == nil || p.Status != control.PausedByUser {
		t.Errorf("paused for %+v", p)
	}
	if err := v.call(control.CommandPause, nil, nil); err == nil || !strings.Contains(err.Error(), "paused already") {
		t.Errorf("paused twice: %v", err)
	}
	third := handedOut(v)
	third.say("while paused")
	time.Sleep(300 * time.Millisecond)
	if got := third.String(); got != "" {
		t.Errorf("a paused guest wrote %q", got)
	}
	v.must(v.call(control.CommandUnpause, nil, nil))
	v.expectState(control.StateRunning)
	third.Expect("while paused")
	if err := v.call(control.CommandUnpause, nil, nil); err == nil || !strings.Contains(err.Error(), "not paused") {
		t.Errorf("unpaused twice: %v", err)
	}
	v.must(v.call(control.CommandReset, nil, nil))
	third.Expect(banner)
	// A stop that was asked for with a long grace period is made a short one.
	v.must(v.call(control.CommandPause, nil, nil))
	v.expectState(control.StatePaused)
	v.must(v.call(control.CommandShutdown, nil, nil))
	v.expectState(control.StateShuttingDown)
	v.must(v.call(control.CommandGrace, control.GraceRequest{Seconds: 0}, nil))
	v.expectState(control.StateExited)
	v.expectEnd(control.ReasonGracePeriodOver, "within 0 seconds")
}

// TestEachCommandHasAnOperation: each command of the protocol has an operation, which either waits for nothing or
// has a bound in time. Only inspect's file systems answer to no context.
func TestEachCommandHasAnOperation(t *testing.T) {
	declared := commands(t)
	if len(declared) != len(operations) || len(declared) < 20 {
		t.Errorf("the protocol has %d commands, the table %d operations", len(declared), len(operations))
	}
	for _, command := range declared {
		o, ok := operations[command]
		switch {
		case !ok:
			t.Errorf("%s has no operation", command)
		case (o.now == nil) == (o.beside == nil):
			t.Errorf("%s has to be done either on the loop or beside it", command)
		case o.now != nil && (o.timeout != 0 || o.queue != queue{}):
			t.Errorf("%s is done on the loop, and has a bound of work beside it", command)
		case o.beside != nil && o.timeout == 0 && command != control.CommandInspect:
			t.Errorf("%s may wait for ever", command)
		}
	}
}

// commands returns the values of the protocol's constants Command….
func commands(t *testing.T) []string {
	t.Helper()
	constant := regexp.MustCompile(`(?m)^(?:const)?\s+Command\w+\s+= "([a-z-]+)"`)
	files, err := filepath.Glob("control/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range constant.FindAllStringSubmatch(string(text), -1) {
			found = append(found, m[1])
		}
	}
	return found
}

// TestFullQueueRefusesWork: work that is done in a queue gives its place back, and one more than the
// queue has is refused.
func TestFullQueueRefusesWork(t *testing.T) {
	b, q := busy{}, queue{"x", 2, "full"}
	for range 2 {
		if err := b.begin(q); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.begin(q); err == nil || err.Error() != "full" {
		t.Errorf("a third: %v", err)
	}
	if err := b.begin(queue{}); err != nil {
		t.Errorf("no queue: %v", err)
	}
	b.end(q)
	if err := b.begin(q); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
}

// TestEveryOperationIsKnown: the commands of a launcher's hello are those that it carries out.
func TestEveryOperationIsKnown(t *testing.T) {
	done, said := slices.Sorted(maps.Keys(operations)), slices.Sorted(maps.Keys(control.KnownCommands()))
	if !slices.Equal(done, said) {
		t.Errorf("it carries out %q, and says %q", done, said)
	}
}
