package control

import (
	"strings"
	"unicode"
)

// Printable returns at most the first limit bytes of a peer's text, without characters that
// cannot be printed.
func Printable(text string, limit int) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, text[:min(len(text), limit)])
}

// Cut returns a text's beginning, of a number of bytes at most. What is valid UTF-8 stays so.
func Cut(text string, bytes int) string {
	if len(text) <= bytes {
		return text
	}
	return strings.ToValidUTF8(text[:bytes], "")
}

// Short returns Printable with room for a name or a few words, 100 bytes. A launcher whose
// guest has broken out may send any text.
func Short(text string) string { return Printable(text, 100) }
