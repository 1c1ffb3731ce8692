package testkit

import (
	"bytes"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Transcript is text that is written while the test waits for parts of it.
type Transcript struct {
	t    testing.TB
	what string

	mu    sync.Mutex
	data  []byte
	found int           // end of what was expected last
	more  chan struct{} // closed and made anew when something is added
	ended bool          // nothing is added any more
}

// NewTranscript returns an empty transcript. what names the text in failures.
func NewTranscript(t testing.TB, what string) *Transcript {
	return &Transcript{t: t, what: what, more: make(chan struct{})}
}

func (s *Transcript) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.data = append(s.data, p...)
	close(s.more)
	s.more = make(chan struct{})
	return len(p), nil
}

// End says that nothing is added any more: waiting for what the text lacks fails at once.
func (s *Transcript) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	close(s.more)
	s.more = make(chan struct{})
}

func (s *Transcript) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.data)
}

// WaitFor waits until done is true of the whole text.
func (s *Transcript) WaitFor(what string, done func(data []byte) bool) {
	s.t.Helper()
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	for late := false; ; {
		s.mu.Lock()
		ok, ended, more := done(s.data), s.ended, s.more
		s.mu.Unlock()
		if ok {
			return
		}
		switch {
		case ended:
			s.t.Fatalf("%s ended and has no %s: %q", s.what, what, s.last())
		case late:
			s.t.Fatalf("%s has no %s within %s: %q", s.what, what, Patience, s.last())
		}
		select {
		case <-more:
		case <-timer.C:
			late = true // and once more: what came while this process did not run counts
		}
	}
}

// last is the end of the text, for a failure.
func (s *Transcript) last() string {
	text := s.String()
	return text[max(0, len(text)-1000):]
}

// Expect waits for a text after the text that was expected last.
func (s *Transcript) Expect(text string) {
	s.t.Helper()
	s.ExpectAny(text)
}

// ExpectAny waits for one of some texts after the text that was expected last.
func (s *Transcript) ExpectAny(texts ...string) {
	s.t.Helper()
	var names []string
	for _, text := range texts {
		names = append(names, strconv.Quote(text))
	}
	s.WaitFor(strings.Join(names, " or "), func(data []byte) bool {
		for _, text := range texts {
			if i := bytes.Index(data[s.found:], []byte(text)); i >= 0 {
				s.found += i + len(text)
				return true
			}
		}
		return false
	})
}

// Pipe is the writing end of a pipe, and a transcript of the reading end. The transcript ends when the last copy
// of the writing end is closed.
func Pipe(t testing.TB, what string) (*os.File, *Transcript) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s, done := NewTranscript(t, what), make(chan struct{})
	go func() { defer close(done); defer s.End(); io.Copy(s, r) }()
	t.Cleanup(func() { w.Close(); <-done; r.Close() })
	return w, s
}
