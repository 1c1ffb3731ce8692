package older

import (
	"encoding/json"
	"io"
)

// maxCaught, in bytes, is longer than each key and value that apiVersions looks for.
const maxCaught = 96

// maxKnown is how deep the deepest apiVersion lies: object.rows[].object.apiVersion.
const maxKnown = 5

// places are where an apiVersion may be; "[]" is an element of a list.
var places = map[string]bool{
	"/apiVersion":                       true, // an object, a list
	"/items/[]/apiVersion":              true, // the objects of a list
	"/rows/[]/object/apiVersion":        true, // the objects of a table, if it has them whole
	"/object/apiVersion":                true, // the object of an event of a watch
	"/object/rows/[]/object/apiVersion": true, // the table of such an event
}

// apiVersions copies JSON texts to a writer, and writes one version in place of another where an
// object has its apiVersion. It copies each other byte. Between two calls of Write it keeps
// maxCaught bytes at most, however long a text or a string in a text is. It does not check whether
// a text is JSON.
type apiVersions struct {
	to       io.Writer
	from, by string

	out   []byte // the bytes for the writer
	depth int
	// frames are the objects and lists around the present byte. The outermost maxKnown are kept.
	frames [maxKnown]frame
	// A string's bytes are caught while they may be a key or an apiVersion.
	inString, escaped bool
	caught            []byte
	catch             caughtAs
}

// frame is an object or a list.
type frame struct {
	list bool
	key  string // of the present value, in an object
	// value says that the key is over.
	value bool
}

type caughtAs int

const (
	nothing caughtAs = iota
	aKey
	anAPIVersion
)

// Write copies the next bytes of a text.
func (a *apiVersions) Write(p []byte) (int, error) {
	a.out = a.out[:0]
	for _, c := range p {
		if a.inString {
			a.string(c)
		} else {
			a.other(c)
		}
	}
	if _, err := a.to.Write(a.out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// string takes a byte of a string.
func (a *apiVersions) string(c byte) {
	if a.catch != nothing {
		a.caught = append(a.caught, c)
	}
	if a.catch != anAPIVersion {
		a.out = append(a.out, c)
	}
	switch {
	case a.escaped:
		a.escaped = false
	case c == '\\':
		a.escaped = true
	case c == '"':
		a.inString = false
		a.over()
		return
	}
	if len(a.caught) > maxCaught {
		a.release()
	}
}

// over ends a string.
func (a *apiVersions) over() {
	var text string
	if a.catch == nothing || json.Unmarshal(a.caught, &text) != nil {
		a.release()
		return
	}
	switch {
	case a.catch == aKey:
		a.frames[a.depth-1].key = text
	case text == a.from:
		a.out = append(append(append(a.out, '"'), a.by...), '"') // a version needs no escape
		a.caught = a.caught[:0]
	}
	a.release()
}

// release copies the caught bytes, which are no version to be replaced.
func (a *apiVersions) release() {
	if a.catch == anAPIVersion {
		a.out = append(a.out, a.caught...)
	}
	a.caught, a.catch = a.caught[:0], nothing
}

// other takes a byte outside of strings.
func (a *apiVersions) other(c byte) {
	switch c {
	case '"':
		a.begin()
		return
	case '{', '[':
		if a.depth < maxKnown {
			a.frames[a.depth] = frame{list: c == '['}
		}
		a.depth++
	case '}', ']':
		a.depth = max(a.depth-1, 0)
	case ':', ',':
		if f := a.inner(); f != nil && !f.list {
			f.value = c == ':'
		}
	}
	a.out = append(a.out, c)
}

// begin takes the quote before a string.
func (a *apiVersions) begin() {
	a.inString = true
	f := a.inner()
	switch {
	case f == nil || f.list:
	case !f.value:
		f.key, a.catch = "", aKey
	case f.key == "apiVersion" && places[a.place()]:
		a.catch = anAPIVersion
	}
	if a.catch != nothing {
		a.caught = append(a.caught[:0], '"')
	}
	if a.catch != anAPIVersion {
		a.out = append(a.out, '"')
	}
}

// inner is the innermost frame, or nil if it is not known.
func (a *apiVersions) inner() *frame {
	if a.depth == 0 || a.depth > maxKnown {
		return nil
	}
	return &a.frames[a.depth-1]
}

func (a *apiVersions) place() (place string) {
	for _, f := range a.frames[:a.depth] {
		if f.list {
			place += "/[]"
		} else {
			place += "/" + f.key
		}
	}
	return place
}
