package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	monitor "github.com/digitalocean/go-qemu/qmp"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// guest is the other end of an agent's port: a guest with QEMU's agent.
type guest struct {
	*Agent
	t    *testing.T
	port net.Conn

	mu      sync.Mutex
	answers map[string]string // results by command, JSON
	errors  map[string]string // texts of errors by command and user, instead
	asked   []string
	given   map[string]string // by command and user: what was asked last
	reports []control.AgentReport
}

func newGuest(t *testing.T) *guest {
	t.Helper()
	return newGuestWith(t, Credentials{}, slog.New(slog.DiscardHandler))
}

// connectedGuest runs, and its agent has been found.
func connectedGuest(t *testing.T) *guest {
	t.Helper()
	g := newGuest(t)
	g.opened(true)
	g.SetRunning(true)
	g.until("connected", isConnected)
	return g
}

// withoutClock runs a test with a guest whose agent has been found, and a clock that stands still while anybody works.
func withoutClock(t *testing.T, test func(t *testing.T, g *guest)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		g := newGuestOn(t, ours, theirs, Credentials{}, slog.New(slog.DiscardHandler))
		g.opened(true)
		g.SetRunning(true)
		g.until("connected", isConnected)
		test(t, g)
	})
}

func newGuestWith(t *testing.T, c Credentials, log *slog.Logger) *guest {
	t.Helper()
	ours, port := testkit.SocketPair(t)
	return newGuestOn(t, ours, port, c, log)
}

func newGuestOn(t *testing.T, ours, port net.Conn, c Credentials, log *slog.Logger) *guest {
	g := &guest{t: t, port: port, errors: map[string]string{}, given: map[string]string{}, answers: map[string]string{
		"guest-ping": "{}", "guest-info": `{"version": "7.2.22"}`, "guest-get-osinfo": `{"id": "debian"}`, "guest-fsfreeze-status": `"thawed"`,
		"guest-network-get-interfaces": `[{"name": "br0", "hardware-address": "52:54:00:00:00:09"}, {"name": "eth0", "hardware-address": "52:54:00:00:00:01"}]`,
		"guest-set-user-password":      "{}", "guest-ssh-add-authorized-keys": "{}",
		"guest-fsfreeze-freeze": "1", "guest-fsfreeze-thaw": "1", "guest-exec": `{"pid": 1}`, "guest-exec-status": `{"exited": true, "exitcode": 3, "out-data": "b3V0"}`}}
	done := make(chan struct{})
	go func() { defer close(done); g.serve() }()
	g.Agent = New(ours, &qemuargs.Machine{NICs: []qemuargs.NIC{{MAC: "52:54:00:00:00:01"}}}, c, func(r control.AgentReport) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.reports = append(g.reports, r)
	}, log)
	t.Cleanup(func() { g.Agent.Close(); g.port.Close(); <-done })
	return g
}

func (g *guest) serve() {
	lines := bufio.NewScanner(g.port)
	for lines.Scan() {
		var r struct {
			Execute   string `json:"execute"`
			Arguments struct {
				ID       json.RawMessage `json:"id"`
				User     string          `json:"username"`
				Keys     []string        `json:"keys"`
				Password []byte          `json:"password"`
			} `json:"arguments"`
		}
		if err := json.Unmarshal([]byte(strings.TrimPrefix(lines.Text(), "\xff")), &r); err != nil {
			g.t.Error(err)
			return
		}
		g.mu.Lock()
		answer, ok := g.answers[r.Execute], true
		if r.Execute == "guest-sync-delimited" {
			_, ok = g.answers["guest-ping"]
			fmt.Fprintf(g.port, "\xff")
			answer = string(r.Arguments.ID)
		} else {
			g.asked = append(g.asked, r.Execute)
			g.given[r.Execute+" "+r.Arguments.User] = strings.Join(r.Arguments.Keys, ",") + string(r.Arguments.Password)
		}
		failure, failed := g.errors[r.Execute+" "+r.Arguments.User]
		g.mu.Unlock()
		if failed {
			text, _ := json.Marshal(failure)
			fmt.Fprintf(g.port, "{\"error\": {\"class\": \"GenericError\", \"desc\": %s}}\n", text)
			continue
		}
		if ok && answer != "" {
			fmt.Fprintf(g.port, "{\"return\": %s}\n", answer)
		}
	}
}

// set changes an answer; without one the agent is silent.
func (g *guest) set(command, answer string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if answer == "" {
		delete(g.answers, command)
	} else {
		g.answers[command] = answer
	}
}

func (g *guest) wasAsked(command string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Contains(g.asked, command)
}

func (g *guest) opened(open bool) {
	g.PortChanged(monitor.Event{Event: "VSERPORT_CHANGE", Data: map[string]any{"id": qemuargs.AgentPortID, "open": open}})
}

// until waits for a report.
func (g *guest) until(what string, is func(control.AgentReport) bool) {
	g.t.Helper()
	testkit.Eventually(g.t, "a report: "+what, func() error {
		if r := g.Report(); !is(r) {
			return fmt.Errorf("the last is %+v", r)
		}
		return nil
	})
}

func isConnected(r control.AgentReport) bool { return r.Connected && len(r.Interfaces) > 0 }

// TestAgentFollowed: an agent is found when it opens its port, what it knows is
// told once, and that it is gone is told when the port is closed.
func TestAgentFollowed(t *testing.T) {
	t.Parallel()
	g := connectedGuest(t)
	r := g.Report()
	if r.OS.ID != "debian" || r.Version != "7.2.22" || len(r.Interfaces) != 2 || r.Interfaces[0].Name != "eth0" {
		t.Errorf("%+v", r)
	}
	told := len(g.reports)
	g.Poll()
	g.set("guest-network-get-interfaces", `[{"name": "new"}]`)
	g.Poll()
	g.until("polled", func(r control.AgentReport) bool { return len(r.Interfaces) == 1 })
	if got := len(g.reports); got != told+1 {
		t.Errorf("%d reports, want one more than %d", got, told)
	}
	g.PortChanged(monitor.Event{Data: map[string]any{"id": "other", "open": false}})
	if !g.Report().Connected {
		t.Error("another port was closed")
	}
	g.opened(false)
	g.until("closed", func(r control.AgentReport) bool { return !r.Connected && r.OS == (control.GuestOS{}) })
	g.opened(true)
	g.until("opened again", isConnected)
}

// TestAgentBacksOff: a guest whose agent comes and goes, or answers some of what
// it is asked, has fewer and fewer reports written.
func TestAgentBacksOff(t *testing.T) {
	t.Parallel()
	for name, live := range map[string]func(*guest){
		"port opened and closed": func(g *guest) {
			for range 600 {
				g.opened(true)
				time.Sleep(500 * time.Millisecond)
				g.opened(false)
				time.Sleep(500 * time.Millisecond)
			}
		},
		"answers pings only": func(g *guest) {
			g.set("guest-info", "")
			g.opened(true)
			time.Sleep(10 * time.Minute)
		},
		"its port opened and closed too": func(g *guest) {
			g.set("guest-info", "")
			for range 60 {
				g.opened(true)
				time.Sleep(9 * time.Second)
				g.opened(false)
				time.Sleep(time.Second)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				g := newGuestOn(t, ours, theirs, Credentials{}, slog.New(slog.DiscardHandler))
				g.SetRunning(true)
				live(g)
				g.mu.Lock()
				defer g.mu.Unlock()
				times := 0
				for i, r := range g.reports {
					if r.Connected && (i == 0 || !g.reports[i-1].Connected) {
						times++
					}
				}
				if times == 0 || times > 14 {
					t.Errorf("connected %d times in ten minutes", times)
				}
			})
		})
	}
}

// TestAgentRestarted: one that has been there for long, and is back at once, is
// not kept waiting.
func TestAgentRestarted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		g := newGuestOn(t, ours, theirs, Credentials{}, slog.New(slog.DiscardHandler))
		g.SetRunning(true)
		g.opened(true)
		time.Sleep(lastRecall + time.Second)
		g.opened(false)
		time.Sleep(time.Second)
		g.opened(true)
		time.Sleep(time.Second)
		if !g.Report().Connected {
			t.Error("not connected")
		}
	})
}

// TestAgentSilent: one that has the port and does not answer is not connected;
// of a guest that is paused nobody expects an answer.
func TestAgentSilent(t *testing.T) {
	t.Parallel()
	withoutClock(t, func(t *testing.T, g *guest) {
		g.SetRunning(false)
		g.set("guest-ping", "")
		g.set("guest-network-get-interfaces", "")
		g.Poll()
		if answer := g.probe(t.Context(), Request{}); answer.Skipped == "" || answer.Error != "" {
			t.Errorf("a probe of a guest that is paused: %+v", answer)
		}
		time.Sleep(50 * time.Millisecond)
		if !g.Report().Connected {
			t.Error("a guest that is paused has lost its agent")
		}
		g.SetRunning(true)
		g.Poll()
		g.until("silent", func(r control.AgentReport) bool { return !r.Connected })
		if answer := g.probe(t.Context(), Request{}); answer.Error != ErrNotConnected.Error() {
			t.Errorf("a probe of a silent agent: %+v", answer)
		}
	})
}

// TestAgentOfEndedGuest: when QEMU has ended, nothing is known of the guest any more.
func TestAgentOfEndedGuest(t *testing.T) {
	t.Parallel()
	g := connectedGuest(t)
	g.End()
	g.mu.Lock()
	last := encoded(g.reports[len(g.reports)-1])
	g.mu.Unlock()
	if none := encoded(control.AgentReport{}); string(last) != string(none) || string(encoded(g.Report())) != string(none) {
		t.Errorf("the last report is %s", last)
	}
	g.update(func(r *control.AgentReport) { r.Connected = true }) // was just being found
	if g.Report().Connected {
		t.Error("connected again")
	}
}

// TestFrozenGuestIsThawedInTime: what is frozen is thawed in time, whoever asks, and whatever
// became of the question.
func TestFrozenGuestIsThawedInTime(t *testing.T) {
	t.Parallel()
	withoutClock(t, func(t *testing.T, g *guest) {
		if err := g.Freeze(t.Context(), 100*time.Millisecond); err != nil || !g.Report().Frozen {
			t.Fatalf("freeze: %v, %+v", err, g.Report())
		}
		if answer := g.probe(t.Context(), Request{Program: "/bin/true"}); answer.Skipped == "" {
			t.Errorf("a program while the file systems are frozen: %+v", answer)
		}
		g.until("thawed in time", func(r control.AgentReport) bool { return !r.Frozen })
		if err := g.Freeze(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if err := g.Thaw(t.Context()); err != nil || g.Report().Frozen {
			t.Errorf("thaw: %v", err)
		}
		// Nobody knows what became of this one.
		g.set("guest-fsfreeze-freeze", "")
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := g.Freeze(ctx, time.Hour); err == nil {
			t.Error("an agent that did not answer has frozen")
		}
		g.until("thawed at once", func(r control.AgentReport) bool { return !r.Frozen })
	})
}

// TestFreezeRenewed: a guest that is frozen for longer right when its time is
// over stays frozen.
func TestFreezeRenewed(t *testing.T) {
	t.Parallel()
	testkit.Slower(t, 100*time.Millisecond, func(frozen time.Duration) error { return freezeRenewed(t, frozen) })
}

// freezeRenewed returns an error if the renewed freeze is undone, or was too late.
func freezeRenewed(t *testing.T, frozen time.Duration) error {
	t.Helper()
	g := connectedGuest(t)
	if err := g.Freeze(t.Context(), frozen); err != nil {
		t.Fatal(err)
	}
	g.set("guest-fsfreeze-status", `"frozen"`)
	g.mu.Lock() // the agent takes its time
	renewed := make(chan error, 1)
	go func() { renewed <- g.Freeze(t.Context(), time.Hour) }()
	time.Sleep(2 * frozen)
	g.mu.Unlock()
	if err := <-renewed; err != nil {
		t.Fatal(err)
	}
	time.Sleep(frozen)
	if g.wasAsked("guest-fsfreeze-thaw") || !g.Report().Frozen {
		return errors.New("the renewed freeze is undone")
	}
	return nil
}

// TestFreezeIsNotSent: nothing is frozen by a command that waited in vain.
func TestFreezeIsNotSent(t *testing.T) {
	t.Parallel()
	testkit.Slower(t, 50*time.Millisecond, func(pause time.Duration) error { return freezeIsNotSent(t, pause) })
}

// freezeIsNotSent returns an error if the freeze was sent: it had its turn before the question that is to be in its way,
// or it was sent in vain.
func freezeIsNotSent(t *testing.T, pause time.Duration) error {
	t.Helper()
	g := connectedGuest(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*pause)
	defer cancel()
	g.mu.Lock() // the agent takes its time
	frozen, users := make(chan error, 1), make(chan error, 1)
	go func() { frozen <- g.Freeze(ctx, 0) }()
	time.Sleep(pause)
	// This is its next question, and it has no answer to it.
	go func() { _, err := g.client.Users(ctx); users <- err }()
	time.Sleep(pause)
	g.mu.Unlock()
	err := <-frozen
	<-users
	if err == nil || g.wasAsked("guest-fsfreeze-freeze") || g.Report().Frozen {
		return fmt.Errorf("frozen: %v, %+v", err, g.Report())
	}
	return nil
}

// TestThawWhilePaused: a guest whose CPUs are stopped is thawed when they run.
func TestThawWhilePaused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		g := newGuestOn(t, ours, theirs, Credentials{}, slog.New(slog.DiscardHandler))
		g.opened(true)
		g.SetRunning(true)
		synctest.Wait()
		if err := g.Freeze(t.Context(), time.Second); err != nil {
			t.Fatal(err)
		}
		g.SetRunning(false)
		time.Sleep(time.Hour)
		if g.wasAsked("guest-fsfreeze-thaw") || !g.Report().Frozen {
			t.Error("a guest that is paused was asked to thaw")
		}
		g.SetRunning(true)
		time.Sleep(thawAgain + time.Second)
		if g.Report().Frozen {
			t.Error("not thawed when it runs again")
		}
	})
}

// TestProbeWhileFreezing: an agent that freezes answers nobody, and is not to blame.
func TestProbeWhileFreezing(t *testing.T) {
	t.Parallel()
	g := connectedGuest(t)
	g.set("guest-fsfreeze-freeze", "")
	ctx, stop := context.WithCancel(t.Context())
	frozen := make(chan error, 1)
	go func() { frozen <- g.Freeze(ctx, 0) }()
	testkit.Until(t, "the question", func() bool { return g.wasAsked("guest-fsfreeze-freeze") })
	for _, r := range []Request{{}, {Program: "/bin/true"}} {
		if answer := g.probe(t.Context(), r); answer.Skipped == "" {
			t.Errorf("%+v: %+v", r, answer)
		}
	}
	stop()
	<-frozen
	g.until("thawed", func(r control.AgentReport) bool { return !r.Frozen })
	if answer := g.probe(t.Context(), Request{}); answer.Skipped != "" || answer.Error != "" {
		t.Errorf("afterwards: %+v", answer)
	}
}

// TestPingFailed: a ping of a probe that the agent leaves unanswered is reported, once a minute
// at most. Of a guest that boots, no readiness probe is.
func TestPingFailed(t *testing.T) {
	t.Parallel()
	live, ready, exec := Request{}, Request{Readiness: true}, Request{Program: "/bin/true"}
	g := newGuest(t)
	g.SetRunning(true)
	fails := func(name string, r Request, reported bool) {
		t.Helper()
		if answer := g.probe(t.Context(), r); answer.Error == "" {
			t.Errorf("%s: %+v", name, answer)
		}
		if got := !g.Report().PingFailed.IsZero(); got != reported {
			t.Errorf("%s: the report is %+v", name, g.Report())
		}
	}
	fails("readiness of a guest that boots", ready, false)
	fails("exec", exec, false)
	fails("liveness of a guest that boots", live, true)
	first := g.Report().PingFailed
	fails("again", live, true)
	if got := g.Report().PingFailed; !got.Equal(first) {
		t.Errorf("reported again after %v", got.Sub(first))
	}

	known := connectedGuest(t)
	known.HoldPings(true)
	known.opened(false)
	known.until("closed", func(r control.AgentReport) bool { return !r.Connected })
	g = known
	g.HoldPings(false)
	fails("readiness of a guest whose agent has gone", ready, true)
	if r := g.Report(); r.PingsHeld || time.Since(r.PingFailed).Abs() > time.Minute {
		t.Errorf("%+v", r)
	}
}

// TestPingsHeld: pings are answered without the agent, and nothing else is.
func TestPingsHeld(t *testing.T) {
	t.Parallel()
	g := connectedGuest(t)
	g.HoldPings(true)
	g.opened(false)
	g.until("held, and closed", func(r control.AgentReport) bool { return r.PingsHeld && !r.Connected })
	for _, r := range []Request{{}, {Readiness: true}} {
		if answer := g.probe(t.Context(), r); answer.Skipped == "" || answer.Error != "" {
			t.Errorf("held, %+v: %+v", r, answer)
		}
	}
	if answer := g.probe(t.Context(), Request{Program: "/bin/true"}); answer.Error == "" {
		t.Errorf("exec while pings are held: %+v", answer)
	}
	if r := g.Report(); !r.PingFailed.IsZero() {
		t.Errorf("%+v", r)
	}
	told := len(g.reports)
	g.HoldPings(true)
	if len(g.reports) != told {
		t.Error("the same a second time makes a report")
	}
	g.HoldPings(false)
	if answer := g.probe(t.Context(), Request{}); answer.Error == "" {
		t.Errorf("no longer held: %+v", answer)
	}
}

// flawed is a listener of which the first calls fail.
type flawed struct {
	net.Listener
	fails atomic.Int32
}

func (f *flawed) Accept() (net.Conn, error) {
	if f.fails.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return f.Listener.Accept()
}

// TestProbesAfterFailure: that once no connection could be taken does not end
// the probes.
func TestProbesAfterFailure(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &flawed{Listener: listener}
	f.fails.Store(2)
	s := serveProbes(f, slog.New(slog.DiscardHandler))
	defer s.Close()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	var answer Answer
	if _, err := io.WriteString(conn, "{}\n"); err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(conn).Decode(&answer); err != nil || answer.Skipped == "" {
		t.Errorf("%+v, %v", answer, err)
	}
}

// TestAgentSocket: probes get what the agent says, one line each.
func TestAgentSocket(t *testing.T) {
	t.Parallel()
	g := connectedGuest(t)
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "agent.sock")
	s, err := ListenForProbes(path, g.log)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.Follow(g.Agent)
	say := func(line string) Answer {
		t.Helper()
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
		_, err = io.WriteString(conn, line)
		var answer Answer
		if data, readErr := io.ReadAll(conn); err == nil && readErr == nil && len(data) > 0 {
			err = json.Unmarshal(data, &answer)
		}
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	if a := say(`{"timeoutSeconds": 60}` + "\n"); a.Error != "" || a.Skipped != "" {
		t.Errorf("ping: %+v", a)
	}
	if a := say(`{"program": "/bin/x", "timeoutSeconds": 60}` + "\n"); a.ExitCode != 3 || string(a.Stdout) != "out" {
		t.Errorf("exec: %+v", a)
	}
	say("nonsense\n")
	g.set("guest-exec-status", `{"exited": false}`)
	if a := say(`{"program": "/bin/x", "timeoutSeconds": 1}` + "\n"); a.Error == "" {
		t.Errorf("what does not end: %+v", a)
	}
	// More than are answered at a time.
	var all sync.WaitGroup
	for range 3 * maxProbes {
		all.Go(func() { say(`{"timeoutSeconds": 60}` + "\n") })
	}
	all.Wait()
}
