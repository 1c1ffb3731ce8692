// Package iso9660 writes ISO 9660 volumes with Rock Ridge and Joliet names: small disks of
// files that a guest only reads.
//
// It is pure: the same input gives the same bytes.
package iso9660

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Limits of a volume.
const (
	MaxFileSize = 4 << 20  // bytes in one file
	MaxSize     = 16 << 20 // bytes in all files
	MaxFiles    = 512
	// MaxLabel is how many characters a label has at most: what a volume identifier holds. Joliet holds the first 16 of them.
	MaxLabel       = 32
	maxJolietLabel = 16
	maxName        = 253 // characters of a name, as of a key in a ConfigMap
	maxJolietName  = 64  // characters of a name in the Joliet tree
	maxDepth       = 8   // levels with the root: ECMA-119, 6.8.2.1
)

// What is wrong with a file or a label.
var (
	ErrName      = errors.New("name must be 1 to 253 of A-Z a-z 0-9 . _ - and neither . nor .. alone")
	ErrDepth     = errors.New("path is deeper than 8 levels")
	ErrDuplicate = errors.New("name is taken")
	ErrFileSize  = errors.New("file is larger than 4 MiB")
	ErrSize      = errors.New("files are larger than 16 MiB together")
	ErrFileCount = errors.New("more than 512 files")
	ErrLabel     = errors.New("label must be 1 to 32 of A-Z a-z 0-9 . _ -")
)

// FileError is a file that cannot be written.
type FileError struct {
	Path string
	Err  error // one of the errors above
}

func (e *FileError) Error() string { return fmt.Sprintf("file %q: %v", e.Path, e.Err) }

func (e *FileError) Unwrap() error { return e.Err }

// File is a file of a volume.
type File struct {
	Path string // slash-separated, from the root: "user-data", "openstack/latest/user_data"
	Data []byte
}

// Image returns an ISO 9660 volume with the label and the files. The error is
// ErrLabel, ErrSize, ErrFileCount or a *FileError.
//
// A name that Joliet cannot hold, because it is longer than 64 characters or differs from another
// name only in case, is another one in the Joliet tree. Linux reads the Rock Ridge names, which are
// whole.
func Image(label string, files []File) ([]byte, error) {
	if len(label) == 0 || len(label) > MaxLabel || !plain(label) {
		return nil, fmt.Errorf("label %q: %w", label, ErrLabel)
	}
	if len(files) > MaxFiles {
		return nil, fmt.Errorf("%d files: %w", len(files), ErrFileCount)
	}
	root, total := newNode("", nil, false), 0
	for _, f := range files {
		if total += len(f.Data); total > MaxSize {
			return nil, ErrSize
		}
		if err := root.add(f); err != nil {
			return nil, &FileError{Path: f.Path, Err: err}
		}
	}
	return newVolume(label, root).bytes(), nil
}

// node is a file or, with children, a directory.
type node struct {
	name     string
	parent   *node // nil for the root
	file     bool
	data     []byte
	children []*node
	byName   map[string]*node // the children
	// shorts and joliets are the names that the children have in the two trees, and how many names
	// have begun like each.
	shorts, joliets taken

	short  string // its name in the primary tree, of the form 8.3
	joliet string // its name in the Joliet tree
	extent uint32 // first sector of a file's data
	rest   uint32 // where the rest of a long name is in the volume, in bytes
}

func newNode(name string, parent *node, file bool) *node {
	n := &node{name: name, parent: parent, file: file}
	if !file {
		n.byName, n.shorts, n.joliets = map[string]*node{}, taken{}, taken{}
	}
	return n
}

func (n *node) add(f File) error {
	if len(f.Data) > MaxFileSize {
		return ErrFileSize
	}
	parts := strings.Split(f.Path, "/")
	if len(parts) >= maxDepth {
		return ErrDepth
	}
	for i, name := range parts {
		if len(name) > maxName || !plain(name) || name == "" || name == "." || name == ".." {
			return ErrName
		}
		last := i == len(parts)-1
		child := n.byName[name]
		switch {
		case child == nil:
			child = newNode(name, n, last)
			child.short, child.joliet = n.shorts.shortName(name, last), n.joliets.jolietName(name)
			n.byName[name] = child
			n.children = append(n.children, child)
		case last, child.file:
			return ErrDuplicate
		}
		n = child
	}
	n.data = f.Data
	return nil
}

func plain(s string) bool {
	for _, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// taken are the names of a directory's entries, without difference of case, as Linux and Windows
// compare Joliet names. The value is the number from which to look for a name that begins like it.
type taken map[string]int

// free returns a name that is not taken, and takes it: the name that form gives without a number, or with
// the first number that leads to a free name.
func (t taken) free(form func(number string) string) string {
	first := form("")
	number := ""
	for i := t[strings.ToLower(first)]; ; i++ {
		if i > 0 {
			number = strconv.Itoa(i)
		}
		name := form(number)
		if key := strings.ToLower(name); t[key] == 0 {
			t[key]++
			t[strings.ToLower(first)] = i + 1
			return name
		}
	}
}

// shortName returns a name for the primary tree that no sibling has: 8 and 3
// of A-Z 0-9 _ for a file, 8 for a directory (ECMA-119, 10.1).
func (t taken) shortName(name string, file bool) string {
	base, ext := name, ""
	if i := strings.LastIndexByte(name, '.'); file && i > 0 {
		base, ext = name[:i], cut(upper(name[i+1:]), 3)
	}
	base = upper(base)
	short := t.free(func(number string) string {
		short := cut(base, 8-len(number)) + number
		if ext != "" {
			short += "." + ext
		}
		return short
	})
	if file && ext == "" {
		short += "."
	}
	return short
}

// jolietName returns a name for the Joliet tree that no sibling has: the name itself, or, if that
// is too long or taken, a name with a number before its extension.
func (t taken) jolietName(name string) string {
	base, ext := name, ""
	const longExtension = 8
	if i := strings.LastIndexByte(name, '.'); i > 0 && len(name)-i <= longExtension {
		base, ext = name[:i], name[i:]
	}
	return t.free(func(number string) string {
		if number != "" {
			number = "-" + number
		}
		return cut(base, maxJolietName-len(number)-len(ext)) + number + ext
	})
}

func cut(s string, n int) string { return s[:min(len(s), n)] }

func upper(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '.' || r == '-' {
			return '_'
		}
		return r
	}, strings.ToUpper(s))
}
