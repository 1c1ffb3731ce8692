package process

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// TestArgumentsAreThoseOfTheKernel: empty arguments and line breaks stay, and what is no argument vector is an error.
func TestArgumentsAreThoseOfTheKernel(t *testing.T) {
	proc := fstest.MapFS{
		"7/cmdline": {Data: []byte("qemu\x00\x00-append\x00a\nb\x00")},
		"8/cmdline": {},
		"9/cmdline": {Data: bytes.Repeat([]byte("x"), MaxArguments+1)},
	}
	if got, err := Arguments(proc, "7"); err != nil || !slices.Equal(got, []string{"qemu", "", "-append", "a\nb"}) {
		t.Errorf("%q, %v", got, err)
	}
	for pid, want := range map[string]string{"8": "has ended", "9": "more than", "10": "not exist"} {
		if got, err := Arguments(proc, pid); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.HasPrefix(err.Error(), "read the arguments of process "+pid) {
			t.Errorf("%s: %q, %v", pid, got, err)
		}
	}
}
