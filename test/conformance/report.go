package main

import (
	"encoding/json"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"time"
)

// spec is a spec that ginkgo ran, or that skipped itself.
type spec struct {
	place   string // FILE:LINE below KubeVirt's folder tests
	text    string
	state   string // passed, failed, skipped, panicked, timedout, interrupted or aborted
	message string // of what did not pass
	at      string // FILE:LINE where that was said
	took    time.Duration
}

func (s spec) passed() bool { return s.state == "passed" }

// location is a place in ginkgo's report.
type location struct {
	FileName   string
	LineNumber int
}

// below returns the place below KubeVirt's folder tests, as FILE:LINE. Other places keep the file's name alone.
func (l location) below() string {
	_, file, ok := strings.Cut(l.FileName, "/tests/")
	if !ok {
		file = path.Base(l.FileName)
	}
	return file + ":" + strconv.Itoa(l.LineNumber)
}

// report is what is read of ginkgo's report as JSON (ginkgo v2, types.Report).
type report struct {
	SpecReports []struct {
		ContainerHierarchyTexts []string
		LeafNodeType            string
		LeafNodeText            string
		LeafNodeLocation        location
		State                   string
		RunTime                 time.Duration
		Failure                 struct {
			Message  string
			Location location
		}
	}
}

// readReport returns the specs that a run of ginkgo was to run. What runs before and after all specs is among them only if it failed.
func readReport(r io.Reader) ([]spec, error) {
	var reports []report
	if err := json.NewDecoder(r).Decode(&reports); err != nil {
		return nil, fmt.Errorf("read ginkgo's report: %w", err)
	}
	var specs []spec
	for _, report := range reports {
		for _, s := range report.SpecReports {
			// ginkgo lists what its filters left out, or what is pending, as well, without a message.
			if left := (s.State == "skipped" || s.State == "pending") && s.Failure.Message == ""; left {
				continue
			}
			it := spec{
				place: s.LeafNodeLocation.below(), text: strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " "),
				state: s.State, message: s.Failure.Message, at: s.Failure.Location.below(), took: s.RunTime,
			}
			if s.LeafNodeType != "It" {
				if it.passed() {
					continue
				}
				it.text = s.LeafNodeType + " " + it.text
			}
			specs = append(specs, it)
		}
	}
	return specs, nil
}
