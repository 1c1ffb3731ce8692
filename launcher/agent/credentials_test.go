package agent

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/guestagent"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// mounted is where Secrets are mounted.
type mounted struct {
	t       *testing.T
	dir     string
	written int
}

// write has the kubelet write a Secret: files in a folder of their own, and links.
func (s *mounted) write(number int, entries map[string]string) {
	s.t.Helper()
	s.written++
	folder, version := layout.AccessCredential(s.dir, number), fmt.Sprintf("..%d", s.written)
	err := os.MkdirAll(filepath.Join(folder, version), 0o755)
	for name, text := range entries {
		err = errors.Join(err, os.WriteFile(filepath.Join(folder, version, name), []byte(text), 0o600))
		if _, missing := os.Lstat(filepath.Join(folder, name)); missing != nil {
			err = errors.Join(err, os.Symlink("..data/"+name, filepath.Join(folder, name)))
		}
	}
	err = errors.Join(err, os.Symlink(version, filepath.Join(folder, "..new")), os.Rename(filepath.Join(folder, "..new"), filepath.Join(folder, "..data")))
	if err != nil {
		s.t.Fatal(err)
	}
}

func TestReadAccounts(t *testing.T) {
	t.Parallel()
	s := &mounted{t: t, dir: t.TempDir()}
	s.write(0, map[string]string{"a": "ssh-rsa A\n# no key\nssh-rsa B\n"})
	s.write(1, map[string]string{"a": "ssh-rsa B", "b": "\nssh-rsa C"})
	s.write(2, map[string]string{"demo": " secret\n", "root": "\n"})
	s.write(3, map[string]string{"a": ""})
	s.write(4, map[string]string{"-x": "secret"})
	s.write(5, map[string]string{"demo": "one\nroot:two"})
	s.write(6, map[string]string{"demo": strings.Repeat("x", maxPassword+1)})
	s.write(7, map[string]string{"a": strings.Repeat("#", maxAccountData)})
	many := map[string]string{}
	for i := range maxAccounts + 1 {
		many[fmt.Sprintf("u%d", i)] = "x"
	}
	s.write(8, many)
	keys := func(secret int, users ...string) control.AgentCredential {
		return control.AgentCredential{Secret: secret, Users: users}
	}
	passwords := func(secret int) control.AgentCredential { return control.AgentCredential{Secret: secret} }
	for name, test := range map[string]struct {
		wanted []control.AgentCredential
		want   accounts
		fails  bool
	}{
		"union": {[]control.AgentCredential{keys(0, "demo", "root"), keys(1, "demo")},
			accounts{Keys: map[string][]string{"demo": {"ssh-rsa A", "ssh-rsa B", "ssh-rsa C"}, "root": {"ssh-rsa A", "ssh-rsa B"}}}, false},
		"no key":              {[]control.AgentCredential{keys(3, "demo")}, accounts{Keys: map[string][]string{"demo": {}}}, false},
		"passwords":           {[]control.AgentCredential{passwords(2)}, accounts{Passwords: map[string]string{"demo": "secret"}}, false},
		"no Secret":           {[]control.AgentCredential{keys(99, "demo")}, accounts{}, true},
		"an option":           {[]control.AgentCredential{passwords(4)}, accounts{}, true},
		"another's line":      {[]control.AgentCredential{passwords(5)}, accounts{}, true},
		"long":                {[]control.AgentCredential{passwords(6)}, accounts{}, true},
		"as much as is taken": {[]control.AgentCredential{keys(7, "demo")}, accounts{Keys: map[string][]string{"demo": {}}}, false},
		"more":                {[]control.AgentCredential{keys(7, "demo"), keys(0, "demo")}, accounts{}, true},
		"too many users":      {[]control.AgentCredential{passwords(8)}, accounts{}, true},
	} {
		got, err := Credentials{s.dir, test.wanted}.read()
		if (err != nil) != test.fails {
			t.Errorf("%s: error %v", name, err)
		}
		if err != nil && (strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "two") || len(err.Error()) > 400) {
			t.Errorf("%s: the error is %q", name, err)
		}
		if !maps.EqualFunc(got.Keys, test.want.Keys, slices.Equal) || !maps.Equal(got.Passwords, test.want.Passwords) {
			t.Errorf("%s: %s", name, cmp.Diff(test.want, got))
		}
	}
}

func TestRefusalIsToldWithoutKeys(t *testing.T) {
	t.Parallel()
	keys := []string{"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGmXQ0pOzm1nU3vIYd9n me@home"}
	const kept = "the guest agent refuses it"
	for text, want := range map[string]string{
		"failed to lookup user 'ghost'":                                         "failed to lookup user 'ghost'",
		"invalid OpenSSH public key: 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGmX": kept, // its end was cut off
		"AAAAC3NzaC1lZDI1NTE5AAAAIGmXQ0pOzm1nU3vIYd9n":                          kept,
	} {
		if got := keysRefused(&guestagent.Error{Class: "GenericError", Text: text}, keys); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	missing := refused(&guestagent.Error{Command: "guest-set-user-password", Class: "CommandNotFound", Text: "secret"})
	if missing != "the guest agent has no guest-set-user-password, or it is disabled there" {
		t.Errorf("no command: %q", missing)
	}
	if got := refused(fmt.Errorf("%w: secret", guestagent.ErrReply)); strings.Contains(got, "secret") {
		t.Errorf("nonsense: %q", got)
	}
}

// lines is a log that is written to and read at once.
type lines struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(p)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.String()
}

// TestCredentialsPropagated: the guest's users have what the Secrets hold, once
// there is an agent and when a Secret has changed, and nobody else is told.
func TestCredentialsPropagated(t *testing.T) {
	t.Parallel()
	s := &mounted{t: t, dir: t.TempDir()}
	const first, second, password = "ssh-ed25519 AAAAfirstfirstfirst", "ssh-ed25519 AAAAsecondsecond", "hunter2hunter2"
	s.write(0, map[string]string{"key": first})
	s.write(2, map[string]string{"demo": password})
	log := &lines{}
	g := newGuestWith(t, Credentials{s.dir, []control.AgentCredential{{Secret: 0, Users: []string{"demo", "root"}}, {Secret: 2}}}, slog.New(slog.NewTextHandler(log, nil)))
	says := func(synchronized bool, message string) func(control.AgentReport) bool {
		return func(r control.AgentReport) bool {
			return r.Credentials != nil && *r.Credentials == control.CredentialsReport{Synchronized: synchronized, Message: message}
		}
	}
	has := func(command, user, want string) {
		t.Helper()
		g.mu.Lock()
		defer g.mu.Unlock()
		if got, ok := g.given[command+" "+user]; !ok || got != want {
			t.Errorf("%s for %s: %q (%t), want %q", command, user, got, ok, want)
		}
	}
	asked := func() int {
		g.mu.Lock()
		defer g.mu.Unlock()
		return strings.Count(strings.Join(g.asked, " "), "guest-s")
	}
	const keys, passwords = "guest-ssh-add-authorized-keys", "guest-set-user-password"
	g.until("no agent yet", says(false, "Guest agent is offline"))
	g.opened(true)
	g.SetRunning(true)
	g.until("connected", says(true, ""))
	has(keys, "demo", first)
	has(keys, "root", first)
	has(passwords, "demo", password)

	// While nothing changes, nobody is told. The second poll begins after the first
	// has looked at the Secrets.
	before := asked()
	for _, name := range []string{"polled", "polled again"} {
		g.set("guest-network-get-interfaces", `[{"name": "`+name+`"}]`)
		g.Poll()
		g.until(name, func(r control.AgentReport) bool { return len(r.Interfaces) == 1 && r.Interfaces[0].Name == name })
	}
	if got := asked(); got != before {
		t.Errorf("%d questions, though nothing had changed", got-before)
	}
	g.mu.Lock()
	g.errors[keys+" root"] = "cannot write " + second + strings.Repeat(" long", 10000)
	g.errors[passwords+" demo"] = "cannot set " + password
	g.mu.Unlock()
	s.write(0, map[string]string{"key": second})
	g.Poll()
	g.until("refused", says(false, "Error encountered writing ssh pub key access credentials for user [root]: the guest agent refuses it"))
	has(keys, "demo", second)

	g.mu.Lock()
	delete(g.errors, keys+" root")
	g.mu.Unlock()
	g.Poll()
	g.until("tried again", says(false, "Error encountered setting password for user [demo]: the guest agent refuses it"))
	has(keys, "root", second)
	g.mu.Lock()
	clear(g.errors)
	g.mu.Unlock()
	s.write(0, map[string]string{"key": ""})
	g.Poll()
	g.until("taken away", says(true, ""))
	has(keys, "demo", "")

	// An agent that goes takes nothing with it; another one is told all again.
	g.opened(false)
	g.until("closed", func(r control.AgentReport) bool { return !r.Connected && r.Credentials.Synchronized })
	before = asked()
	s.write(2, map[string]string{"demo": "another"})
	g.opened(true)
	g.until("opened again", isConnected)
	g.until("told again", func(control.AgentReport) bool { return asked() == before+3 })
	has(passwords, "demo", "another")

	if err := os.RemoveAll(layout.AccessCredential(s.dir, 0)); err != nil {
		t.Fatal(err)
	}
	g.Poll()
	g.until("no Secret", func(r control.AgentReport) bool { return !r.Credentials.Synchronized })

	g.mu.Lock()
	reports, err := json.Marshal(g.reports)
	g.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"AAAA", password, base64.StdEncoding.EncodeToString([]byte(password))} {
		if strings.Contains(string(reports), secret) || strings.Contains(log.text(), secret) {
			t.Errorf("%q is in a report or the log:\n%s\n%s", secret, reports, log.text())
		}
	}
}

func TestIsAccountName(t *testing.T) {
	for name, want := range map[string]bool{
		"debian": true, "_apt": true, ".a": true, "Jane.Doe": true, "a-b@c$": true, "0": true,
		"": false, "-h": false, "@a": false, "$a": false, "a:b": false, "a b": false, "a\n": false, "é": false, "aé": false, "a/b": false,
	} {
		if got := isAccountName(name); got != want {
			t.Errorf("%q is an account's name: %v, want %v", name, got, want)
		}
	}
}
