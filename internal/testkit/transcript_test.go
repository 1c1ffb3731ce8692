package testkit

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := make(chan int, 1)
		time.AfterFunc(time.Minute, func() { c <- 7 })
		if got := Receive(t, c, "seven"); got != 7 {
			t.Errorf("received %d", got)
		}
		got := failure(t, func(t testing.TB) { Receive(t, c, "eight") })
		if want := fmt.Sprintf("waited %s in vain for eight", Patience); got != want {
			t.Errorf("%q, not %q", got, want)
		}
		close(c)
		if got := Receive(t, c, "the end"); got != 0 {
			t.Errorf("received %d of a closed channel", got)
		}
	})
}

func TestTranscript(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s *Transcript
		vain := func(text string) string {
			return failure(t, func(t testing.TB) { s.t = t; s.Expect(text) })
		}
		s = NewTranscript(t, "the guest")
		time.AfterFunc(time.Minute, func() { fmt.Fprint(s, "login: ") })
		s.Expect("login")
		if got, want := vain("login"), fmt.Sprintf(`the guest has no "login" within %s: "login: "`, Patience); got != want {
			t.Errorf("the same text twice: %q, not %q", got, want)
		}
		time.AfterFunc(time.Minute, s.End)
		if got, want := vain("password"), `the guest ended and has no "password": "login: "`; got != want {
			t.Errorf("%q, not %q", got, want)
		}
	})
}

func TestPipe(t *testing.T) {
	w, s := Pipe(t, "the pipe")
	for _, word := range strings.Fields("one two three") {
		if _, err := io.WriteString(w, word); err != nil {
			t.Fatal(err)
		}
		s.Expect(word)
	}
	w.Close()
	Until(t, "the transcript's end", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.ended })
	if got := s.String(); got != "onetwothree" {
		t.Errorf("%q", got)
	}
}
