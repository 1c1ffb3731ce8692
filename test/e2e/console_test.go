package e2e

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// transcript is what a command prints, while it runs.
type transcript struct {
	t     *testing.T
	what  string
	input io.WriteCloser
	ended chan struct{}

	mu   sync.Mutex
	text strings.Builder
	// wake is closed, and made anew, when there is more text.
	wake chan struct{}
	read int // what was expected before
}

// startTranscript starts a command that ends with the test.
func startTranscript(t *testing.T, what, name string, args ...string) *transcript {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, name, args...)
	s := &transcript{t: t, what: what, ended: make(chan struct{}), wake: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = s, s
	var err error
	if s.input, err = cmd.StdinPipe(); err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	go func() {
		defer close(s.ended)
		cmd.Wait()
	}()
	t.Cleanup(func() {
		cancel()
		<-s.ended
	})
	return s
}

// Write takes what the command prints.
func (s *transcript) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(p)
	close(s.wake)
	s.wake = make(chan struct{})
	return len(p), nil
}

func (s *transcript) all() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// match looks for the pattern in the text from an offset on, and returns what
// to wait for if it is not there yet.
func (s *transcript) match(pattern *regexp.Regexp, from int) (groups []string, end int, wake <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := s.text.String()[from:]
	found := pattern.FindStringSubmatchIndex(text)
	if found == nil {
		return nil, 0, s.wake
	}
	return pattern.FindStringSubmatch(text), from + found[1], nil
}

// shows waits for the pattern, anywhere in the text.
func (s *transcript) shows(pattern string) {
	s.t.Helper()
	s.await(patience, pattern, 0)
}

// expect waits for the pattern after what was expected before, and returns its
// groups.
func (s *transcript) expect(pattern string) []string {
	s.t.Helper()
	return s.expectFor(patience, pattern)
}

// expectFor is expect with another bound.
func (s *transcript) expectFor(timeout time.Duration, pattern string) []string {
	s.t.Helper()
	groups, end := s.await(timeout, pattern, s.read)
	s.read = end
	return groups
}

func (s *transcript) await(timeout time.Duration, pattern string, from int) (groups []string, end int) {
	s.t.Helper()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	compiled := regexp.MustCompile(pattern)
	for ended := false; ; {
		groups, end, wake := s.match(compiled, from)
		switch {
		case groups != nil:
			return groups, end
		case ended:
			s.t.Fatalf("%s ended before %q; it is:\n%s", s.what, pattern, s.all())
		}
		select {
		case <-wake:
		case <-s.ended:
			ended = true
		case <-timer.C:
			s.t.Fatalf("%s has no %q after %s; it is:\n%s", s.what, pattern, timeout, s.all())
		}
	}
}

func (s *transcript) send(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s.input, text); err != nil {
		s.t.Fatalf("write to %s: %v", s.what, err)
	}
}

// log follows the log of the VMI's pod from its beginning. The kubelet has one
// once it has said that the container runs, which a VMI may have said before.
func (v vmi) log() *transcript {
	v.t.Helper()
	err := poll(func() error {
		if s := v.pod().Status; len(s.ContainerStatuses) == 0 || s.ContainerStatuses[0].State.Waiting != nil {
			return fmt.Errorf("the pod of VMI %s waits: %+v", v.name, s.ContainerStatuses)
		}
		return nil
	})
	if err != nil {
		v.t.Fatal(err)
	}
	return startTranscript(v.t, "log of VMI "+v.name, "kubectl", "-n", v.namespace, "logs", "--follow", v.pod().Name)
}

// console attaches to the VMI's serial console.
func (v vmi) console() *transcript {
	v.t.Helper()
	return startTranscript(v.t, "console of VMI "+v.name, "kubectl", "-n", v.namespace, "exec", "-i", v.pod().Name, "--", "virt-launcher", "console")
}

// shell attaches to the console of a tiny guest and waits for its prompt.
func (v vmi) shell() *transcript {
	v.t.Helper()
	c := v.console()
	up := regexp.MustCompile(`tiny# `)
	err := poll(func() error {
		// What is typed before the shell is there is lost.
		c.send("\n")
		if groups, _, _ := c.match(up, 0); groups == nil {
			return fmt.Errorf("%s has no prompt; it is:\n%s", c.what, c.all())
		}
		return nil
	})
	if err != nil {
		v.t.Fatal(err)
	}
	return c
}

// interrupt ends the loop that the guest's shell runs. Between two commands of the loop the
// terminal may still belong to a command that has ended: a Ctrl+C then reaches no process.
func (s *transcript) interrupt() {
	s.t.Helper()
	prompts := func() int { return strings.Count(s.all(), "tiny# ") }
	before := prompts()
	err := poll(func() error {
		s.send("\x03")
		if prompts() == before {
			return fmt.Errorf("%s has no prompt after Ctrl+C", s.what)
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// announcement is what the tiny guest says by itself, such as that it has its lease. It may follow a command's last line that does not end.
var announcement = regexp.MustCompile(`tiny: (\w+ [0-9a-f.:]+/\d+ via |cidata |config-2 |cannot mount |ACPI |ignoring |bye).*\n`)

// run runs a command in the guest's shell and returns what it printed and its
// exit status.
func (s *transcript) run(command string) (string, int) {
	s.t.Helper()
	return s.runFor(patience, command)
}

// runFor is run with another bound.
func (s *transcript) runFor(timeout time.Duration, command string) (string, int) {
	s.t.Helper()
	// The terminal echoes the command, but not the marks: there they are in two parts.
	s.send(`echo "<"begin">"; ` + command + `; echo "<"end:$?">"` + "\n")
	groups := s.expectFor(timeout, `(?s)<begin>\r?\n(.*)<end:(\d+)>`)
	status, _ := strconv.Atoi(groups[2])
	return announcement.ReplaceAllString(strings.ReplaceAll(groups[1], "\r\n", "\n"), ""), status
}
