package admission

import (
	"strings"
	"testing"
)

// TestNumbersThatTakeMinutesAreNotRead: those that would take minutes are not even read.
func TestNumbersThatTakeMinutesAreNotRead(t *testing.T) {
	for number, want := range map[string]bool{
		`"128Mi"`: true, `"1E"`: true, `"1Ei"`: true, `"0.5"`: true, `"-1"`: true, `1024`: true, `"5e307ca9-b3ef-428c-8861-06e72d69f223"`: true,
		`"e1000"`: true, `"e123456"`: true, `"1e9"`: true, `"8e1234"`: true, `"1e-999"`: true, `"1e-1000"`: false, `null`: true, `[]`: true, `{"metadata":{"labels":{"commit":"8e12345"}}}`: true,
		`"1e-999999999"`: false, `1e-999999999`: false, `"\u0031e-999999999"`: false, `".1E-999999999"`: false, `"1.e99999"`: false,
		`{"metadata":"1e-999999999"}`: false, `{"metadata":{"x":1e-999999999}}`: false,
		`"0.` + strings.Repeat("0", 100_000) + `1"`: false, strings.Repeat("9", 100_000): false,
	} {
		raw := []byte(`{"spec":{"domain":{"memory":{"guest":"1Mi"},"x":[` + number + `],"firmware":{"uuid":` + number + `}}}}`)
		if err := CheckReadable(raw); (err == nil) != want || err != nil && !strings.HasPrefix(err.Error(), "spec.domain.x[0]") {
			t.Errorf("%.40s: %v", number, err)
		}
	}
	const guest = `{"spec":{"domain":{"memory":{"guest":"1e-999999999"}}}}`
	if answer := ask(t, newServer(empty, nil), "/virtualmachineinstances-mutate", guest, ""); !answer.Allowed || len(answer.Patch) > 2 {
		t.Errorf("%+v", answer)
	}
	if answer := ask(t, newServer(empty, nil), "/virtualmachineinstances-validate", guest, ""); answer.Allowed || !strings.Contains(answer.Result.Message, "spec.domain.memory.guest: Invalid value") {
		t.Errorf("%+v", answer)
	}
}

// TestReviewsThatTakeMuchMemoryAreRefused: neither is what would take much memory, or is no JSON.
func TestReviewsThatTakeMuchMemoryAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		`{"spec":{"volumes":[` + strings.Repeat(`{},`, 25_000) + `{}]}}`: "more than",
		strings.Repeat(`[`, 1_000_000):                                   "deep",
		`{"a":1}{}`:                                                      "follows",
		`{"a":1}]`:                                                       "follows",
		`{"a":`:                                                          "EOF",
		`{"a" 1}`:                                                        "invalid character",
		``:                                                               "EOF",
	} {
		if err := CheckReadable([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, want %q", text, err, want)
		}
	}
}
