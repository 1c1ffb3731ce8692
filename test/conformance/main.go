// conformance holds what KubeVirt's functional suite did here against the list of its specs that do not pass.
//
//	conformance [-list FILE] REPORT...
//
// Each REPORT is ginkgo's report as JSON. The program fails on each difference: a spec that does not pass and is not in the list, one of
// the list that passes, and one of the list that did not run. README.md says how the suite is run.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	list := flag.String("list", "specs.txt", "the specs that do not pass, each with its class and the reason")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: conformance [-list FILE] REPORT...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(os.Stdout, *list, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

var errDifferent = errors.New("the run and the list differ")

// run compares the reports with the list. It returns errDifferent if they differ.
func run(w io.Writer, list string, reports []string) error {
	entries, err := readFile(list, readList)
	if err != nil {
		return err
	}
	var specs []spec
	for _, name := range reports {
		more, err := readFile(name, readReport)
		if err != nil {
			return err
		}
		specs = append(specs, more...)
	}
	o := compare(specs, entries)
	o.write(w)
	if !o.green() {
		return errDifferent
	}
	return nil
}

// readFile reads a file by read. Errors name the file.
func readFile[T any](name string, read func(io.Reader) (T, error)) (T, error) {
	var none T
	f, err := os.Open(name)
	if err != nil {
		return none, err
	}
	defer f.Close()
	it, err := read(f)
	if err != nil {
		return none, fmt.Errorf("%s: %w", name, err)
	}
	return it, nil
}
