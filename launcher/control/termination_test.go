package control

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTerminationKeepsTheEnd(t *testing.T) {
	short := Termination{Reason: ReasonQEMUExited, Message: "QEMU exited", ExitCode: 1, Signal: "killed", Stderr: "out of luck"}
	var got Termination
	if err := Decode(short.Encode(), &got); err != nil || got != short {
		t.Errorf("got %+v, error %v, want it unchanged", got, err)
	}
	long := short
	long.Stderr = strings.Repeat("noise ", 10_000) + "the last words"
	data := long.Encode()
	if err := Decode(data, &got); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(got.Stderr, "the last words") || got.Message != short.Message || len(data) < maxTermination-10 {
		t.Errorf("%d bytes, stderr ends in %q, message %q", len(data), got.Stderr[max(0, len(got.Stderr)-20):], got.Message)
	}
	long.Message, got = strings.Repeat("m", 2*maxTermination), Termination{}
	if err := Decode(long.Encode(), &got); err != nil || got.Stderr != "" || !strings.HasPrefix(got.Message, "mmm") {
		t.Errorf("long message: %v, stderr %q", err, got.Stderr)
	}
}

func TestWhichReasonsAreSuccess(t *testing.T) {
	want := map[Reason]bool{ReasonGuestShutdown: true, ReasonShutdown: true, ReasonGracePeriodOver: false, ReasonNeverStarted: false,
		ReasonStartFailed: false, ReasonGuestPanic: false, ReasonQEMUExited: false, "": false, "Unknown": false}
	for reason, succeeded := range want {
		if got := (Termination{Reason: reason}).Succeeded(); got != succeeded {
			t.Errorf("%q: %v", reason, got)
		}
	}
}

func FuzzTerminationEncode(f *testing.F) {
	f.Add("", "", 1)
	f.Add("short", "plain stderr", 400)
	f.Add("\x00\x01", "\x1b[31m\x00\x7f", 1500)   // control characters: 6 bytes each
	f.Add("<&>", "\xff\xfe\xed\xa0\x80", 2000)    // invalid UTF-8
	f.Add("größe", "\u2028😀\"\\", 1111)           // runes that a cut may split
	f.Add(strings.Repeat("m", 5000), "stderr", 3) // a message alone too long
	f.Fuzz(func(t *testing.T, message, stderr string, times int) {
		if times < 0 || times > 4096 || len(stderr)*times > 1<<20 || len(message) > 1<<20 {
			t.Skip()
		}
		data := Termination{Reason: ReasonQEMUExited, Message: message, ExitCode: 1, Stderr: strings.Repeat(stderr, times)}.Encode()
		if len(data) > maxTermination || !utf8.Valid(data) {
			t.Fatalf("%d bytes, valid UTF-8: %v", len(data), utf8.Valid(data))
		}
		var got Termination
		if err := json.Unmarshal(data, &got); err != nil || got.Reason != ReasonQEMUExited || got.ExitCode != 1 {
			t.Fatalf("got %+v, error %v", got, err)
		}
	})
}
