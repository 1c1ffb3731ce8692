package guestagent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
)

// fakeAgent is the guest's end of the port.
type fakeAgent struct {
	t    *testing.T
	port net.Conn

	mu    sync.Mutex
	asked []string // commands but synchronizations, with their arguments
	// answer writes the answer to a command; the default is a file of testdata.
	answer func(command string, arguments json.RawMessage)
}

// withoutClock runs a test with a Client, the agent that it asks, and a clock that stands still while anybody works.
func withoutClock(t *testing.T, test func(*testing.T, *Client, *fakeAgent)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c, a := connected(t)
		test(t, c, a)
	})
}

// connected returns a Client and the agent that it asks, by a pipe.
func connected(t *testing.T) (*Client, *fakeAgent) {
	t.Helper()
	ours, theirs := net.Pipe()
	a := &fakeAgent{t: t, port: theirs}
	a.answer = a.fromFile
	done := make(chan struct{})
	go func() { defer close(done); a.serve() }()
	client := New(ours)
	t.Cleanup(func() { client.Close(); a.port.Close(); <-done })
	return client, a
}

// told returns a channel of what the agent is told. It holds a few lines, as a port's buffer does, while the agent writes.
func (a *fakeAgent) told() <-chan []byte {
	told := make(chan []byte, 8)
	go func() {
		defer close(told)
		for lines := bufio.NewScanner(a.port); lines.Scan(); {
			told <- bytes.Clone(lines.Bytes())
		}
	}()
	return told
}

func (a *fakeAgent) serve() {
	for line := range a.told() {
		for len(line) > 0 && line[0] == delimiter {
			line = line[1:]
		}
		var r struct {
			Execute   string          `json:"execute"`
			Arguments json.RawMessage `json:"arguments"`
		}
		if err := json.Unmarshal(line, &r); err != nil {
			a.t.Errorf("the agent was told %q", line)
			return
		}
		if r.Execute == "guest-sync-delimited" {
			var id struct {
				ID json.RawMessage `json:"id"`
			}
			_ = json.Unmarshal(r.Arguments, &id)
			a.write(fmt.Sprintf("\xff{\"return\": %s}\n", id.ID))
			continue
		}
		a.mu.Lock()
		a.asked = append(a.asked, r.Execute+string(r.Arguments))
		a.mu.Unlock()
		a.answer(r.Execute, r.Arguments)
	}
}

func (a *fakeAgent) write(text string) { _, _ = a.port.Write([]byte(text)) }

// fromFile answers as QEMU 7.2's agent did.
func (a *fakeAgent) fromFile(command string, _ json.RawMessage) {
	data, err := os.ReadFile(filepath.Join("testdata", "qemu-7.2", command+".json"))
	if err != nil {
		a.write(`{"error": {"class": "CommandNotFound", "desc": "The command ` + command + ` has not been found"}}` + "\n")
		return
	}
	var one json.RawMessage
	if err := json.Unmarshal(data, &one); err != nil {
		a.t.Error(err)
	}
	line, err := json.Marshal(map[string]json.RawMessage{"return": one})
	if err != nil {
		a.t.Error(err)
	}
	a.write(string(line) + "\n")
}
