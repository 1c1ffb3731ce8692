package guestagent

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// TestAnswersOfDebiansAgent: what QEMU 7.2's agent in Debian 12 answered is understood.
func TestAnswersOfDebiansAgent(t *testing.T) {
	withoutClock(t, func(t *testing.T, c *Client, _ *fakeAgent) {
		ctx := t.Context()
		check := func(what string, want, got any, err error) {
			t.Helper()
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%s: %v, -want +got:\n%s", what, err, diff)
			}
		}
		info, err := c.Info(ctx)
		check("info", control.AgentCommand{Name: "guest-get-devices"}, info.Commands[5], err)
		check("version", "7.2.22", info.Version, err)
		system, err := c.OS(ctx)
		check("OS", control.GuestOS{Name: "Debian GNU/Linux", KernelRelease: "6.1.0-31-amd64", Version: "12 (bookworm)", PrettyName: "Debian GNU/Linux 12 (bookworm)",
			VersionID: "12", KernelVersion: "#1 SMP PREEMPT_DYNAMIC Debian 6.1.128-1", Machine: "x86_64", ID: "debian"}, system, err)
		found, err := c.Interfaces(ctx)
		check("interfaces", []control.GuestInterface{{Name: "enp1s0", MAC: "52:54:00:00:00:01", Addresses: []string{"10.0.2.2"}}}, found, err)
		users, err := c.Users(ctx)
		check("users", []control.GuestUser{{Name: "demo", LoginTime: 1732217000.5}}, users, err)
		systems, err := c.FileSystems(ctx)
		check("file systems", []control.GuestFileSystem{{Name: "vda", MountPoint: "/", Type: "ext4", UsedBytes: 500000000, TotalBytes: 1200000000,
			Disks: []control.GuestDisk{{BusType: "virtio"}}}}, systems, err)
		var said *Error
		if err := c.Ping(ctx); !errors.As(err, &said) || said.Class != "CommandNotFound" {
			t.Errorf("an error of the agent's: %v", err)
		}
	})
}

// TestActionsAreToldToTheAgent: what the agent is told, and that it is understood.
func TestActionsAreToldToTheAgent(t *testing.T) {
	withoutClock(t, func(t *testing.T, c *Client, a *fakeAgent) {
		ctx := t.Context()
		a.answer = func(command string, _ json.RawMessage) {
			switch command {
			case "guest-shutdown": // has no answer
			case "guest-fsfreeze-status":
				a.write(`{"return": "frozen"}` + "\n")
			case "guest-fsfreeze-freeze", "guest-fsfreeze-thaw":
				a.write(`{"return": 2}` + "\n")
			default:
				a.write(`{"return": {}}` + "\n")
			}
		}
		status, err := c.FreezeStatus(ctx)
		if err := errors.Join(err, c.Ping(ctx), freeze(ctx, c), c.Thaw(ctx), c.Reboot(ctx), c.Shutdown(ctx),
			c.SetUserPassword(ctx, "root", "secret"), c.SSHSetAuthorizedKeys(ctx, "demo", []string{"ssh-ed25519 AAAA"}), c.SSHSetAuthorizedKeys(ctx, "demo", nil)); err != nil || status != Frozen {
			t.Fatalf("%q, %v", status, err)
		}
		want := []string{`guest-fsfreeze-status`, `guest-ping`, `guest-fsfreeze-freeze`, `guest-fsfreeze-thaw`,
			`guest-shutdown{"mode":"reboot"}`, `guest-shutdown{"mode":"powerdown"}`,
			`guest-set-user-password{"username":"root","password":"` + base64.StdEncoding.EncodeToString([]byte("secret")) + `","crypted":false}`,
			`guest-ssh-add-authorized-keys{"username":"demo","keys":["ssh-ed25519 AAAA"],"reset":true}`,
			`guest-ssh-add-authorized-keys{"username":"demo","keys":[],"reset":true}`}
		a.mu.Lock()
		defer a.mu.Unlock()
		if diff := cmp.Diff(want, a.asked); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}

func freeze(ctx context.Context, c *Client) error {
	sent, err := c.Freeze(ctx)
	if !sent && err == nil {
		err = errors.New("frozen, and not told to")
	}
	return err
}

// TestFreezeIsNotSent: who did not get the turn, or found nobody who listens,
// knows that nothing is frozen.
func TestFreezeIsNotSent(t *testing.T) {
	withoutClock(t, func(t *testing.T, c *Client, a *fakeAgent) {
		a.answer = func(string, json.RawMessage) {}
		soon := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			t.Cleanup(cancel)
			return ctx
		}
		c.turn <- struct{}{}
		if sent, err := c.Freeze(soon()); sent || err == nil {
			t.Errorf("without the turn: %v, %v", sent, err)
		}
		<-c.turn
		if sent, err := c.Freeze(soon()); !sent || !errors.Is(err, ErrSilent) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without an answer: %v, %v", sent, err)
		}
		a.port.Close()
		if sent, err := c.Freeze(soon()); sent || err == nil {
			t.Errorf("to nobody: %v, %v", sent, err)
		}
	})
}

// TestExecWaitsForTheProgramsEnd: a program's end is waited for; of what it wrote, the beginning is kept.
func TestExecWaitsForTheProgramsEnd(t *testing.T) {
	withoutClock(t, func(t *testing.T, c *Client, a *fakeAgent) {
		ends, running := `{"return": {"exited": true, "exitcode": 3, "out-data": "b3V0", "err-data": "ZXJy"}}`, 2
		a.answer = func(command string, _ json.RawMessage) {
			switch {
			case command == "guest-exec":
				running = 2
				a.write(`{"return": {"pid": 42}}` + "\n")
			case running > 0:
				running--
				a.write(`{"return": {"exited": false}}` + "\n")
			default:
				a.write(ends + "\n")
			}
		}
		result, err := c.Exec(t.Context(), "/bin/x", []string{"-a"})
		if diff := cmp.Diff(Result{ExitCode: 3, Stdout: []byte("out"), Stderr: []byte("err")}, result); diff != "" || err != nil {
			t.Errorf("%v, %s", err, diff)
		}
		if !slices.Contains(a.asked, `guest-exec{"path":"/bin/x","arg":["-a"],"capture-output":true}`) || !slices.Contains(a.asked, `guest-exec-status{"pid":42}`) {
			t.Errorf("the agent was asked %q", a.asked)
		}
		ends = `{"return": {"out-data": "` + strings.Repeat("eHh4", 1<<20) + `", "exited": true, "exitcode": 4}}`
		if result, err = c.Exec(t.Context(), "/bin/x", nil); err != nil || result.ExitCode != 4 || string(result.Stdout) != strings.Repeat("xxx", maxString/4) {
			t.Errorf("much output: %v, code %d, %d bytes", err, result.ExitCode, len(result.Stdout))
		}
		ends = `{"return": {"exited": true}}`
		if _, err = c.Exec(t.Context(), "/bin/x", nil); err == nil {
			t.Error("a program of which nothing is said has ended well")
		}
		ends = `{"return": {"exited": false}}`
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if _, err = c.Exec(ctx, "/bin/x", nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a program that does not end: %v", err)
		}
		if err := c.Desync(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestHostileAgentCostsLittle: whatever answers, it costs little, and a good answer afterwards
// is understood.
func TestHostileAgentCostsLittle(t *testing.T) {
	good := func(a *fakeAgent) {
		a.answer = func(string, json.RawMessage) { a.write(`{"return": {"host-name": "good"}}` + "\n") }
	}
	for name, tt := range map[string]struct {
		answer string
		repeat bool // until nobody reads it
		want   error
	}{
		"no JSON":          {answer: "hello\n", want: ErrReply},
		"no result":        {answer: "{}\n", want: ErrReply},
		"another type":     {answer: `{"return": [1, 2]}` + "\n", want: ErrReply},
		"deep":             {answer: strings.Repeat("[", 200_000) + "\n", want: ErrReply},
		"long host name":   {answer: `{"return": {"host-name": "` + strings.Repeat("é", 5<<20) + `"}}` + "\n"},
		"escapes":          {answer: `{"return": {"host-name": "` + strings.Repeat(`\u00e9\"\\`, 1<<18) + `"}}` + "\n"},
		"invalid UTF-8":    {answer: "{\"return\": {\"host-name\": \"a\xc3\x28\xfe\x00b\"}}\n", want: ErrReply},
		"many members":     {answer: `{"return": {` + strings.Repeat(`"x": 1, `, 1<<20) + "}}\n", want: ErrTooLong},
		"endless JSON":     {answer: `{"return": {"host-name": "x", "y": [1,`, repeat: true, want: ErrTooLong},
		"endless string":   {answer: `"` + strings.Repeat("x", 4000), repeat: true, want: ErrTooLong},
		"endless nothing":  {answer: strings.Repeat("\n", 100) + strings.Repeat("\xff", 4000), repeat: true},
		"control in error": {answer: "{\"error\": {\"class\": \"x\", \"desc\": \"\\u001b[31m" + strings.Repeat("x", 5000) + "\"}}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			withoutClock(t, func(t *testing.T, c *Client, a *fakeAgent) {
				stop := make(chan struct{})
				a.answer = func(string, json.RawMessage) {
					a.write(tt.answer)
					for tt.repeat {
						if _, err := a.port.Write([]byte(tt.answer)); err != nil {
							return
						}
						select {
						case <-stop:
							return
						default:
						}
					}
				}
				hostname, err := c.Hostname(t.Context())
				if tt.want != nil && !errors.Is(err, tt.want) {
					t.Errorf("error %v, want %v", err, tt.want)
				}
				if len(hostname) > maxName || !utf8.ValidString(hostname) || err != nil && len(err.Error()) > 2*maxText {
					t.Errorf("host name of %d bytes, error of %d", len(hostname), len(err.Error()))
				}
				if tt.repeat {
					close(stop)
					ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
					defer cancel()
					_, _ = c.Hostname(ctx) // what it has sent is still there
				}
				good(a)
				hostname, err = c.Hostname(t.Context())
				if hostname != "good" || err != nil {
					t.Errorf("afterwards: %q, %v", hostname, err)
				}
			})
		})
	}
}

// TestLongListsAreCut: of a list that is long, the beginning is taken.
func TestLongListsAreCut(t *testing.T) {
	withoutClock(t, func(t *testing.T, c *Client, a *fakeAgent) {
		one := `{"name": "eth0", "hardware-address": "52:54:00:00:00:01", "ip-addresses": [` +
			strings.Repeat(`{"ip-address": "10.0.0.1"}, `, 50) + `{"ip-address": "x"}]}`
		a.answer = func(string, json.RawMessage) {
			a.write(`{"return": [` + strings.Repeat(one+", ", 100) + one + "]}\n")
		}
		found, err := c.Interfaces(t.Context())
		if err != nil || len(found) != 101 || len(found[0].Addresses) != maxAddresses {
			t.Errorf("%v, %d interfaces, %v", err, len(found), found)
		}
		a.answer = func(string, json.RawMessage) { a.write(`{"return": [` + strings.Repeat(`{},`, 80_000) + "{}]}\n") }
		if found, err = c.Interfaces(t.Context()); err != nil || len(found) != maxLinks {
			t.Errorf("%v, %d interfaces, want %d", err, len(found), maxLinks)
		}
		if users, err := c.Users(t.Context()); err != nil || len(users) != maxUsers {
			t.Errorf("%v, %d users, want %d", err, len(users), maxUsers)
		}
		a.answer = func(string, json.RawMessage) {
			a.write(`{"return": [` + strings.Repeat(`{"name": "eth0", "hardware-address": "52:54:00:00:00:01"}, `, 100_000) + one + "]}\n")
		}
		if _, err = c.Interfaces(t.Context()); !errors.Is(err, ErrTooLong) {
			t.Errorf("100,000 interfaces: %v", err)
		}
		a.answer = a.fromFile
		if found, err = c.Interfaces(t.Context()); err != nil || len(found) != 1 {
			t.Errorf("afterwards: %v, %v", err, found)
		}
	})
}

// TestSilentAgentHoldsUpNobody: an agent that does not answer holds up nobody for long, and its
// answer, when it comes, is not taken for that to the next question.
func TestSilentAgentHoldsUpNobody(t *testing.T) {
	withoutClock(t, func(t *testing.T, c *Client, a *fakeAgent) {
		a.answer = func(string, json.RawMessage) {}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := c.Ping(ctx); !errors.Is(err, ErrSilent) {
			t.Errorf("no answer: %v", err)
		}
		go a.write(`{"return": {"host-name": "late"}}` + "\n\xff{\"return\": 7}\n") // it is read with the next answer
		synctest.Wait()
		a.answer = func(string, json.RawMessage) { a.write(`{"return": {"host-name": "now"}}` + "\n") }
		if name, err := c.Hostname(t.Context()); name != "now" || err != nil {
			t.Errorf("after a late answer: %q, %v", name, err)
		}
		a.port.Close()
		if err := c.Ping(t.Context()); err == nil {
			t.Error("a port that was closed answers")
		}
	})
}

// TestAliveWaitsForNobodysQuestions: who finds out whether the agent answers has to wait for nobody's
// questions, and is told of an agent that answers nobody.
func TestAliveWaitsForNobodysQuestions(t *testing.T) {
	withoutClock(t, func(t *testing.T, c *Client, a *fakeAgent) {
		named, held := make(chan struct{}), make(chan struct{})
		a.answer = func(command string, _ json.RawMessage) {
			switch command {
			case "guest-get-host-name":
				<-named
				a.write(`{"return": {"host-name": "x"}}` + "\n")
			case "guest-get-users":
				<-held
			case "guest-get-osinfo":
				a.write(`{"return": {}}` + "\n")
			}
		}
		waits := func(ask func() error) chan error {
			done := make(chan error, 1)
			go func() { done <- ask() }()
			return done
		}
		until := func(asked string) {
			for {
				a.mu.Lock()
				yes := slices.Contains(a.asked, asked)
				a.mu.Unlock()
				if yes {
					return
				}
				time.Sleep(time.Millisecond)
			}
		}
		first := waits(func() error { _, err := c.Hostname(t.Context()); return err })
		until("guest-get-host-name")
		c.mu.Lock()
		c.answered = time.Time{} // the synchronization was long ago
		c.mu.Unlock()
		alive := waits(func() error { return c.Alive(t.Context()) })
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := c.Alive(ctx); err == nil {
			t.Error("an agent that answers nobody is alive")
		}
		close(named)
		if err := <-alive; err != nil {
			t.Errorf("while it answers another: %v", err)
		}
		if err := <-first; err != nil {
			t.Error(err)
		}
		// It has just answered, and is busy.
		if _, err := c.OS(t.Context()); err != nil {
			t.Error(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		second := waits(func() error { _, err := c.Users(ctx); return err })
		until("guest-get-users")
		if err := c.Alive(t.Context()); err != nil {
			t.Errorf("right after an answer: %v", err)
		}
		stop()
		<-second
		close(held)
		// Nobody asks: it has to answer itself.
		ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := c.Alive(ctx); !errors.Is(err, ErrSilent) {
			t.Errorf("asked itself: %v", err)
		}
	})
}
