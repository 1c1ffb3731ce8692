package main

import (
	"bufio"
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"unicode/utf8"
)

const (
	longestLine = 120 // characters
	longestCell = 160
)

// count counts in all Go files of a tree, and in the pages of its docs.
func count(tree fs.FS) (counts, error) {
	found := counts{}
	err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if base := path.Base(name); name != "." && (strings.HasPrefix(base, ".") || base == "_output" || base == "node_modules" || base == "testdata") {
				return fs.SkipDir
			}
			return nil
		case !strings.HasSuffix(name, ".go") && !(strings.HasPrefix(name, "docs/") && strings.HasSuffix(name, ".md")):
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		page := strings.HasSuffix(name, ".md")
		switch {
		case page && !isWritten.Match(text):
			found.add(name, ofPage(text))
			return nil
		case page, isGenerated.Match(text):
			return nil
		}
		c, err := ofGo(name, text)
		found.add(path.Dir(name), c)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("count: %w", err)
	}
	return found, nil
}

// isGenerated matches the line by which Go's tools know files that a program wrote. isWritten matches how a page that a
// program wrote begins.
var (
	isGenerated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
	isWritten   = regexp.MustCompile(`\A# .*\n\n<!-- written by `)
)

// ofGo counts in a Go file.
func ofGo(name string, text []byte) (c tally, err error) {
	file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return tally{}, err
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Doc != nil && !saysWhatItDoes(f.Name.Name, f.Doc.Text()) {
			c.comments++
		}
	}
	c.lines = longLines(text)
	return c, nil
}

// saysWhatItDoes reports whether a function's comment begins as Go's comments do: "Name returns …", and not "Name is …"
// or "Name says whether …". A test's comment begins with the property: "TestName: …".
func saysWhatItDoes(name, comment string) bool {
	said, ok := strings.CutPrefix(comment, name+" ")
	if !ok {
		return strings.HasPrefix(comment, name+":")
	}
	verb, _, _ := strings.Cut(said, " ")
	switch verb = strings.TrimSpace(verb); verb {
	case "is", "are", "was", "were", "says", "tells", "has", "have", "can", "may":
		return false
	}
	return true
}

// ofPage counts in a page of Markdown. What stands in a fence, and a line with a link that is too long by itself, does not count.
func ofPage(text []byte) (c tally) {
	fenced := false
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, len(text)+1)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			fenced = !fenced
		case fenced:
		case strings.HasPrefix(line, "|"):
			for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
				if utf8.RuneCountInString(strings.TrimSpace(cell)) > longestCell {
					c.cells++
				}
			}
		case utf8.RuneCountInString(line) > longestLine && strings.Contains(strings.TrimSpace(line), " "):
			c.lines++
		}
	}
	return c
}

// longLines returns how many lines are too long.
func longLines(text []byte) (n int) {
	for line := range bytes.Lines(text) {
		if utf8.RuneCount(bytes.TrimRight(line, "\n")) > longestLine {
			n++
		}
	}
	return n
}
