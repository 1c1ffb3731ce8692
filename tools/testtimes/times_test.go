package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const unitEvents = `{"Action":"start","Package":"github.com/kubeqemu/kubeqemu/launcher"}
{"Action":"run","Package":"github.com/kubeqemu/kubeqemu/launcher","Test":"TestBoot"}
{"Action":"output","Package":"github.com/kubeqemu/kubeqemu/launcher","Test":"TestBoot","Output":"pass\n"}
{"Action":"pass","Package":"github.com/kubeqemu/kubeqemu/launcher","Test":"TestBoot/one","Elapsed":7}
{"Action":"pass","Package":"github.com/kubeqemu/kubeqemu/launcher","Test":"TestBoot","Elapsed":8.4}
{"Action":"skip","Package":"github.com/kubeqemu/kubeqemu/launcher","Test":"TestSkipped","Elapsed":99}
{"Action":"pass","Package":"github.com/kubeqemu/kubeqemu/launcher","Elapsed":9}
{"ImportPath":"x","Action":"build-output","Output":"x"}
`

const endEvents = `{"Action":"fail","Package":"github.com/kubeqemu/kubeqemu/test/e2e","Test":"TestLife","Elapsed":31}
{"Action":"fail","Package":"github.com/kubeqemu/kubeqemu/test/e2e","Elapsed":40}
{"Action":"pass","Packa`

const want = `part   from, s   to, s   took, s
lint   0         200     200
unit   1         30      29
all    0         200     200

slowest packages   s
test/e2e           40
launcher           9

slowest tests       s
test/e2e.TestLife   31
launcher.TestBoot   8

`

// TestTable: the table has each part, and the slowest first; a part of a test is in the test's time.
func TestTable(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{
		"unit.json": unitEvents, "e2e.json": endEvents, "parts": "unit 1001.1 1030.2\nlint 1000.3 1200.4\n",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := run(folder, &out); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

// TestBrokenTimes: a line that is no part, and events that are none, are errors.
func TestBrokenTimes(t *testing.T) {
	for _, files := range []map[string]string{{"parts": "unit\n"}, {"parts": "", "unit.json": "[]\n"}, {}} {
		folder := t.TempDir()
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := run(folder, &bytes.Buffer{}); err == nil {
			t.Errorf("%q is taken", files)
		}
	}
}
