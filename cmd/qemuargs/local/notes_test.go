package local

import (
	"bytes"
	"testing"

	"github.com/kubeqemu/kubeqemu/cmd/qemuargs/local/images"
)

// TestProgressIsOneLineOnATerminal: a terminal shows progress in one line, and whatever else is written gets one
// line for each work.
func TestProgressIsOneLineOnATerminal(t *testing.T) {
	const what = "fetch registry.example/debian:12"
	steps := []images.Progress{{What: what, Total: 2e6}, {What: what, Done: 1e6, Total: 2e6}, {What: what, Done: 2e6, Total: 2e6}, {What: what, Finished: true}}
	for _, c := range []struct {
		terminal bool
		want     string
	}{
		{false, what + ": 2.0 MB\nbetween\nend\n"},
		{true, "\r\x1b[K" + what + ": 2.0 MB\r\x1b[Kbetween\n\r\x1b[K" + what + ": 1.0 of 2.0 MB\r\x1b[K" + what + ": 2.0 of 2.0 MB\nend\n"},
	} {
		var out bytes.Buffer
		n := newNotes(&out)
		n.terminal = c.terminal
		for i, p := range steps {
			n.progress(p)
			if i == 0 {
				n.say("between")
			}
		}
		n.say("end")
		if got := out.String(); got != c.want {
			t.Errorf("terminal %v: %q, want %q", c.terminal, got, c.want)
		}
	}
}

// TestNotesOnRawTerminal: lines begin at the left where the terminal takes them as they are.
func TestNotesOnRawTerminal(t *testing.T) {
	var out bytes.Buffer
	n := newNotes(&out)
	n.raw(true)
	if _, err := n.Write([]byte("QEMU says\nthis")); err != nil {
		t.Fatal(err)
	}
	n.raw(false)
	n.say("%d%%", 100)
	if got, want := out.String(), "QEMU says\r\nthis\r\n100%\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
