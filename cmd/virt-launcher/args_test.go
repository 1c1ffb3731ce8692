package main

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestRunningQEMU: the arguments are those of the process that is QEMU, whatever is in them.
func TestRunningQEMU(t *testing.T) {
	proc := fstest.MapFS{
		"1/cmdline": {Data: []byte("virt-launcher\x00run\x00")},
		"2/cmdline": {},
		"17/cmdline": {Data: []byte("/usr/bin/qemu-system-x86_64\x00-S\x00-name\x00guest=a b\x00-append\x00-x y\x00" +
			"-m\x001M\x00")},
		"self/cmdline": {Data: []byte("qemu-system-none\x00")},
	}
	words, err := runningQEMU(proc)
	if err != nil {
		t.Fatal(err)
	}
	const want = "/usr/bin/qemu-system-x86_64 \\\n  -S \\\n  -name 'guest=a b' \\\n  -append '-x y' \\\n  -m 1M\n"
	if got := qemuargs.QuoteWords(words); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	delete(proc, "17/cmdline")
	if _, err := runningQEMU(proc); !errors.Is(err, errNoQEMU) || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("without QEMU: %v", err)
	}
}
