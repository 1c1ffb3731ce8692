// Command testtimes prints where the time of make test went:
//
//	testtimes FOLDER
//
// test/part.sh writes the file parts in the folder: a line for each part, with its name, when it began and when it
// ended. Each file *.json is what `go test -json` printed.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// shown is how many of the slowest packages and tests are printed.
const shown = 10

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: testtimes FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "testtimes:", err)
		os.Exit(1)
	}
}

func run(folder string, out io.Writer) error {
	text, err := os.ReadFile(filepath.Join(folder, "parts"))
	if err != nil {
		return fmt.Errorf("read the parts' times: %w", err)
	}
	parts, err := parseParts(string(text))
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return err
	}
	var tests times
	for _, file := range files {
		if err := readFile(&tests, file); err != nil {
			return err
		}
	}
	_, err = io.WriteString(out, table(parts, tests))
	return err
}

// readFile adds the times in a file of `go test -json`.
func readFile(tests *times, path string) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := tests.read(f); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}
