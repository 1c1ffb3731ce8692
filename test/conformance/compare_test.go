package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const aReport = `[{"SpecReports": [
	{"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
	{"ContainerHierarchyTexts": ["VM"], "LeafNodeType": "It", "LeafNodeText": "runs", "State": "passed",
		"LeafNodeLocation": {"FileName": "/mod/kubevirt@v1/tests/vm_test.go", "LineNumber": 10}},
	{"LeafNodeType": "It", "LeafNodeText": "of two at one line", "State": "passed",
		"LeafNodeLocation": {"FileName": "/mod/kubevirt@v1/tests/vm_test.go", "LineNumber": 20}},
	{"LeafNodeType": "It", "LeafNodeText": "of two at one line", "State": "failed", "RunTime": 2000000000,
		"LeafNodeLocation": {"FileName": "/mod/kubevirt@v1/tests/vm_test.go", "LineNumber": 20},
		"Failure": {"Message": "Expected\n  1\nto be 2", "Location": {"FileName": "/mod/kubevirt@v1/tests/libvmi/x.go", "LineNumber": 7}}},
	{"LeafNodeType": "It", "LeafNodeText": "asks for IPv6", "State": "skipped",
		"LeafNodeLocation": {"FileName": "/mod/kubevirt@v1/tests/network/net.go", "LineNumber": 5}, "Failure": {"Message": "no IPv6"}},
	{"LeafNodeType": "It", "LeafNodeText": "is of another tier", "State": "skipped",
		"LeafNodeLocation": {"FileName": "/mod/kubevirt@v1/tests/network/net.go", "LineNumber": 6}}
]}]`

// TestDifferencesOfRunAndList: the program fails on each difference between a run and the list, in either direction.
func TestDifferencesOfRunAndList(t *testing.T) {
	for name, c := range map[string]struct {
		list string
		want string // of what is printed
		same bool
	}{
		"same": {
			list: "decision vm_test.go:20 as it should be\nhardware network/net.go:5 no IPv6\n",
			want: "4 specs, 2 passed, 1 decision, 1 hardware\n",
			same: true,
		},
		"chance decides": {
			list: "harness? vm_test.go:10 by chance\ndecision? vm_test.go:20 by chance\nhardware network/net.go:5 no IPv6\n",
			want: "4 specs, 2 passed, 1 decision, 1 hardware\n",
			same: true,
		},
		"one that does not pass is not in the list": {
			list: "hardware network/net.go:5 no IPv6",
			want: "NOT IN THE LIST: vm_test.go:20 failed (2 s): of two at one line\n\tat libvmi/x.go:7: Expected 1 to be 2\n",
		},
		"one that skipped itself is not in the list": {
			list: "decision vm_test.go:20 x",
			want: "NOT IN THE LIST: network/net.go:5 skipped",
		},
		"one of the list passes": {
			list: "# a comment\n\nfault vm_test.go:10 it does not run\ndecision vm_test.go:20 x\nhardware network/net.go:5 no IPv6",
			want: "PASSES NOW: vm_test.go:10: take line 3 out of the list (fault: it does not run)\n",
		},
		"one of the list did not run": {
			list: "decision vm_test.go:20 x\nhardware network/net.go:5 no IPv6\nhardware network/net.go:6 no IPv6",
			want: "DID NOT RUN: network/net.go:6, line 3 of the list",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			list, report := filepath.Join(dir, "specs.txt"), filepath.Join(dir, "report.json")
			for file, text := range map[string]string{list: c.list, report: aReport} {
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var out bytes.Buffer
			err := run(&out, list, []string{report})
			if (err == nil) != c.same || !strings.Contains(out.String(), c.want) {
				t.Errorf("%v, and it says\n%s\nwant\n%s", err, out.String(), c.want)
			}
		})
	}
}

// TestSuiteThatDoesNotStartIsADifference: what fails before all specs is told.
func TestSuiteThatDoesNotStartIsADifference(t *testing.T) {
	specs, err := readReport(strings.NewReader(`[{"SpecReports": [{"LeafNodeType": "SynchronizedBeforeSuite", "State": "failed",
		"LeafNodeLocation": {"FileName": "/x/tests/tests_suite_test.go", "LineNumber": 1}, "Failure": {"Message": "no cluster"}}]}]`))
	if err != nil {
		t.Fatal(err)
	}
	if o := compare(specs, nil); o.green() || len(o.unlisted) != 1 {
		t.Errorf("%+v", o)
	}
}

func TestListsThatCannotBeRead(t *testing.T) {
	for list, want := range map[string]string{
		"flaw vm_test.go:1 x": "no class",
		"fault vm_test.go:1":  "is not CLASS FILE:LINE REASON",
		"fault vm_test:1 x":   "is not CLASS FILE:LINE REASON",
		"fault":               "is not CLASS FILE:LINE REASON",
		"fault vm_test.go:1 x\nmissing vm_test.go:1 y": "in line 1 already",
	} {
		if _, err := readList(strings.NewReader(list)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", list, err, want)
		}
	}
}

// TestListOfThisTree: the list can be read, and the reasons of decisions are few.
func TestListOfThisTree(t *testing.T) {
	entries, err := readFile("specs.txt", readList)
	if err != nil {
		t.Fatal(err)
	}
	count := map[class]int{}
	for _, e := range entries {
		count[e.class]++
	}
	if count[fault] > 0 {
		t.Errorf("the list has %d specs of class %s", count[fault], fault)
	}
	if count[decision] > 10 {
		t.Errorf("the list has %d specs of class %s; at most ten are allowed", count[decision], decision)
	}
}
