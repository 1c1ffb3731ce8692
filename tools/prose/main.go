// Command prose counts what the style of the project's comments and lines does not want, and holds it against the counts
// that were written down. A count may only fall:
//
//	prose [-update] TREE
//
// It counts, for each folder with Go files, the functions whose comments do not say what the function does, and the lines of
// more than 120 characters; and for each page of docs/ the lines of more than 120 characters and the cells of tables of more than 160. Files that a
// program wrote do not count. The counts are in the file counts beside this one; -update writes those that
// fell.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	update := flag.Bool("update", false, "write the counts down")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: prose [-update] TREE")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *update); err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(1)
	}
}

// run counts in a tree, and writes the counts down or compares them with what is written.
func run(tree string, update bool) error {
	found, err := count(os.DirFS(tree))
	if err != nil {
		return err
	}
	file := filepath.Join(tree, "tools", "prose", "counts")
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the counts: %w", err)
	}
	written, err := parse(string(text))
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	if update {
		written = written.lowered(found)
		if err := os.WriteFile(file, written.text(), 0o644); err != nil {
			return fmt.Errorf("write the counts: %w", err)
		}
	}
	return found.against(written)
}
