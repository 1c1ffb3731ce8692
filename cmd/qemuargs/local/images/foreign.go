package images

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of texts that an image or a registry brings into an error, in bytes.
const (
	maxShownName  = 200
	maxShownError = 2000
)

// shown is a name for an error: in quotes, and not long.
func shown(name string) string { return strconv.Quote(cut(name, maxShownName)) }

// cut keeps the beginning of a text, in whole characters.
func cut(text string, size int) string {
	if len(text) <= size {
		return text
	}
	for size > 0 && !utf8.RuneStart(text[size]) {
		size--
	}
	return text[:size] + "…"
}

// foreign is an error that may have texts of an image or a registry in it. A terminal obeys
// control characters: the message has them as Go writes them in strings, and has an end.
type foreign struct{ error }

func (f foreign) Unwrap() error { return f.error }

func (f foreign) Error() string {
	var out strings.Builder
	for text := cut(f.error.Error(), maxShownError); text != ""; {
		r, size := utf8.DecodeRuneInString(text)
		if next := text[:size]; strconv.IsPrint(r) && (r != utf8.RuneError || size > 1) {
			out.WriteString(next)
		} else {
			quoted := strconv.Quote(next)
			out.WriteString(quoted[1 : len(quoted)-1])
		}
		text = text[size:]
	}
	return out.String()
}
